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
from typer import Argument, Option
from typer.core import TyperCommand, TyperOption

from intently.errors import ArgumentError, build

if TYPE_CHECKING:
    from rich.console import Console

    from intently.tasks.training.options import Flag

PAIRED = ("--dev",)
"""Options that take one file or two."""

METAVARS = {int: "N", float: "X", str: "WORD", bool: "", tuple[float, float]: "X X"}
"""What stands for the value of an option, by its type."""


class Command(TyperCommand):
    """A command whose options never take another option as their value.

    In its help, arguments are in capitals, and flags have no value.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
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
        flags, valued = set[str](), set[str]()
        for option in self.params:
            if option.param_type_name == "option":
                names = flags if getattr(option, "is_flag", False) else valued
                names.update(option.opts, option.secondary_opts)
        spread: list[str] = []
        for two_before, before, word in zip(["", "", *args], ["", *args], args):
            if before in valued and word in flags | valued:
                ctx.fail(f"Option {before!r} requires an argument; {word} is an option.")
            if two_before in PAIRED and before not in valued and not word.startswith("-"):
                spread.append(two_before)
            spread.append(word)
        return super().parse_args(ctx, spread)


def _out_folder(name: str | Path) -> Path:
    """Refuse "" as a folder, which would mean the current one."""
    if not str(name):
        raise typer.BadParameter('expected a folder; got "". For the one you are in write "."')
    return Path(name)


def option(metavar: str, help: str, *names: str, **rules: Any) -> Any:
    """Return an option with a value, which its help calls ``metavar``."""
    return Option(*names, metavar=metavar, help=help, **rules)


def run_folder(help: str) -> Any:
    """Return the option --out of a command that fills a folder."""
    return option("FOLDER", help, parser=_out_folder)


Out = Annotated[Path, run_folder("folder of the run")]
Layers = Annotated[
    list[str] | None, option("PATTERN", "only these modules, such as 'decoder.*'; may be repeated")
]
LengthPenalty = Annotated[float, option("X", "α of Wu et al. 2016, equation 14", min=-6, max=6)]
Open = Annotated[bool, Option("--open", help="open the page in the browser")]
ModelAndText = Annotated[
    list[str] | None,
    Argument(
        metavar="[MODEL] [TEXT]",
        help="a folder (a translator, a language model, or one of transformers; the embedded "
        "translator if left out), and what it reads",
        show_default=False,
    ),
]


def model_and_text(arguments: list[str], example: str) -> tuple[Path | None, str | None]:
    """Return the folder of a model and a text from one or two arguments; None where left out.

    ``example`` is a correct command, shown in the error for too many arguments.
    """
    if not 0 < len(arguments) < 3:
        got = f"{len(arguments)} arguments"
        raise build(ArgumentError, "TEXT", "one text in quotes", got, fix=f"write {example}")
    if len(arguments) == 2:
        return Path(arguments[0]), arguments[1]
    [one] = arguments
    return (Path(one), None) if os.path.isdir(one) else (None, one)


def model_with_text(arguments: list[str] | None, example: str) -> tuple[Path | None, str]:
    """Return `model_and_text`; refuse a folder without a text."""
    model, text = model_and_text(arguments or [], example)
    if text is None:
        fix = f"write {example}"
        raise build(ArgumentError, "TEXT", "one text in quotes", "a folder alone", fix=fix)
    return model, text


def plain_console(*, quiet: bool = False) -> Console:
    """Return a console that prints text unchanged and wraps lines only on a terminal."""
    from rich.console import Console

    wraps = sys.stdout.isatty()
    return Console(soft_wrap=not wraps, markup=False, highlight=False, quiet=quiet)


def with_flags(
    options: Mapping[str, Flag], often: Collection[str]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command one flag per option in place of its ``**flags``.

    A flag that is not given is None. ``--help`` describes the options that are ``often`` used, so
    that it fits a screen, and ``--help-all`` every one, by group.
    """

    def print_all(context: typer.Context, asked: bool) -> None:
        if not asked:
            return
        for parameter in context.command.params:
            if isinstance(parameter, TyperOption) and parameter.name in options:
                parameter.hidden = False
                parameter.rich_help_panel = options[parameter.name].group.capitalize()
        typer.echo(context.get_help())
        raise typer.Exit

    help_all = Option(
        "--help-all",
        help=f"Describe the other {len(options) - len(often)} options, too, and exit.",
        is_eager=True,
        expose_value=False,
        callback=print_all,
    )

    def keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, kind, annotation=annotation, default=default)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(command, eval_str=True).parameters.values()
        every = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
        for name, flag in options.items():
            every.append(keyword(name, _annotation(flag, hidden=name not in often), None))
        every.append(keyword("help_all", Annotated[bool, help_all], False))

        @wraps(command)
        def run(help_all: None = None, **given: Any) -> None:
            command(**given)

        run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in every}
        return run

    return decorate


def _annotation(flag: Flag, *, hidden: bool) -> Any:
    """Return the type of an option and its description, with its choices and its default."""
    choices = ", ".join(flag.rule.choices if flag.rule else ())
    choices = choices.replace(f"{flag.default}", f"{flag.default} (default)", 1)
    help = f"{flag.help}: {choices}" if choices else flag.help
    if not choices and flag.default is not None:
        default = ("off", "on")[flag.default] if isinstance(flag.default, bool) else flag.default
        help += f" (default {default})"
    kind = flag.type
    if isinstance(kind, types.UnionType):
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    return Annotated[
        kind | None,
        Option(
            metavar=METAVARS[kind],
            help=help,
            show_default=False,
            hidden=hidden,
            rich_help_panel="Often used",
        ),
    ]
