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
from typer.core import TyperCommand, TyperOption

from intently.errors import ArgumentError, build

if TYPE_CHECKING:
    from rich.console import Console

    from intently.tasks.training.options import Flag

Layers = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN", help="only these modules, such as 'decoder.*'; may be repeated"
    ),
]


PAIRED = ("--dev",)
"""Options that take one file or two."""


class Command(TyperCommand):
    """A command whose options never take another option as their value.

    In its help, arguments are in capitals, and flags have no value.
    """

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        for parameter in self.params:
            if parameter.param_type_name == "argument":
                parameter.metavar = parameter.metavar or str(parameter.name).upper()
                vars(parameter)["display_type_rich"] = lambda ctx: None  # the name says enough
            elif getattr(parameter, "is_flag", False):
                parameter.metavar = ""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option --help, a flag as any other."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.metavar = ""
        return option

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; refuse an option where the value of another belongs."""
        own = [each for each in self.params if each.param_type_name == "option"]
        of_flags = [each for each in own if getattr(each, "is_flag", False)]
        flags = {name for each in of_flags for name in (*each.opts, *each.secondary_opts)}
        valued = {name for each in own for name in each.opts} - flags
        spread: list[str] = []
        for n, word in enumerate(args):
            before = args[n - 1] if n else ""
            if before in valued and word in flags | valued:
                ctx.fail(f"Option {before!r} requires an argument; {word} is an option.")
            two_before = args[n - 2] if n > 1 else ""
            if two_before in PAIRED and before not in valued and not word.startswith("-"):
                spread.append(two_before)
            spread.append(word)
        return super().parse_args(ctx, spread)


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
                        metavar=METAVARS[_plain(flag.type)],
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


METAVARS = {int: "N", float: "X", str: "WORD", bool: "", tuple[float, float]: "X X"}
"""What stands for the value of an option, by its type."""


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
    default = ("off", "on")[flag.default] if isinstance(flag.default, bool) else flag.default
    return f"{flag.help} (default {default})"


def _plain(kind: Any) -> Any:
    """Return the type of an option without ``None``."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return next(part for part in typing.get_args(kind) if part is not type(None))
    return kind
