"""Arguments that commands share: a folder to write to, a model and a text, a flag per option."""

from __future__ import annotations

import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperOption

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


def with_flags(
    options: Mapping[str, Flag], often: Collection[str]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command one flag per option in place of its ``**flags``.

    A flag that is not given is None. ``--help`` describes the options that are ``often`` used, so
    that it fits a screen, and ``--help-all`` every one, by group.
    """
    groups = {name: flag.group.capitalize() for name, flag in options.items()}
    rest = len(options) - len(often)

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
                        hidden=name not in often,
                        rich_help_panel="Often used",
                    ),
                ],
                default=None,
            )
            for name, flag in options.items()
        ]
        made.append(
            inspect.Parameter(
                "help_all",
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[
                    bool,
                    typer.Option(
                        "--help-all",
                        help=f"Describe the other {rest} options, too, and exit.",
                        is_eager=True,
                        expose_value=False,
                        callback=_help_all(groups),
                    ),
                ],
                default=False,
            )
        )
        every = [*(p for p in own if p.kind is not p.VAR_KEYWORD), *made]

        @wraps(command)
        def run(help_all: None = None, **given: Any) -> None:
            command(**given)

        run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in every}
        return run

    return decorate


def _help_all(groups: Mapping[str, str]) -> Callable[[typer.Context, bool], None]:
    """Return what prints the help with every option in the panel of its group, and exits."""

    def print_all(context: typer.Context, asked: bool) -> None:
        if not asked:
            return
        for parameter in context.command.params:
            if isinstance(parameter, TyperOption) and parameter.name in groups:
                parameter.hidden = False
                parameter.rich_help_panel = groups[parameter.name]
        typer.echo(context.get_help())
        raise typer.Exit

    return print_all


def _help(flag: Flag) -> str:
    """Return the help of an option, with its choices and its default."""
    choices = ", ".join(flag.rule.choices if flag.rule else ())
    choices = choices.replace(f"{flag.default}", f"{flag.default} (default)", 1)
    if choices or flag.default is None:
        return f"{flag.help}: {choices}" if choices else flag.help
    return f"{flag.help} (default {flag.default})"


def _plain(kind: Any) -> Any:
    """Return the type of an option without ``None``."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return next(part for part in typing.get_args(kind) if part is not type(None))
    return kind
