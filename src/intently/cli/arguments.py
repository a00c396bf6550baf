"""Arguments that commands share: a folder to write to, a model and a text, a flag per option."""

from __future__ import annotations

import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intently.errors import ArgumentError, build

if TYPE_CHECKING:
    from rich.console import Console

    from intently.training.options import Flag

Layers = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN", help="only these modules, such as 'decoder.*'; may be given again"
    ),
]


def out_folder(name: str | Path) -> Path:
    """Return the folder given by --out; refuse "", which would mean the current folder."""
    if not str(name):
        raise typer.BadParameter('expected a folder; got "". For the one you are in write "."')
    return Path(name)


def plain_console(*, quiet: bool = False) -> Console:
    """Return a console that prints text unchanged and wraps lines only on a terminal."""
    from rich.console import Console

    wraps = sys.stdout.isatty()
    return Console(soft_wrap=not wraps, markup=False, highlight=False, quiet=quiet)


def model_and_text(given: list[str], example: str) -> tuple[Path | None, str | None]:
    """Return the folder of a model and a text from one or two arguments; None where left out.

    ``example`` is a correct command, shown in the error for too many arguments.
    """
    if not 0 < len(given) < 3:
        got = f"{len(given)} arguments"
        raise build(ArgumentError, "TEXT", "one text in quotes", got, fix=f"write {example}")
    if len(given) == 2:
        return Path(given[0]), given[1]
    return (Path(given[0]), None) if os.path.isdir(given[0]) else (None, given[0])


def with_flags(options: Mapping[str, Flag]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command one flag per option in place of its ``**flags``.

    A flag that is not given is None.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        made = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[
                    _plain(flag.type) | None,
                    typer.Option(
                        help=_help(flag),
                        show_default=False,
                        rich_help_panel=flag.group.capitalize(),
                    ),
                ],
                default=None,
            )
            for name, flag in options.items()
        ]
        every = [*(p for p in own if p.kind is not p.VAR_KEYWORD), *made]
        command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in every}
        return command

    return decorate


def _help(flag: Flag) -> str:
    """Return the help of an option, with its choices and its default."""
    choices = ", ".join(flag.rule.choices if flag.rule else ())
    choices = choices.replace(f"{flag.default}", f"{flag.default} (default)", 1)
    return f"{flag.help}: {choices}" if choices else f"{flag.help} (default {flag.default})"


def _plain(kind: Any) -> Any:
    """Return the type of an option without ``None``."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return next(part for part in typing.get_args(kind) if part is not type(None))
    return kind
