"""The command line: ``demo``, ``translate``, ``look``, ``watch``, ``check``, ``train`` and more.

A command is imported when it is called, so that ``intently --help`` needs no PyTorch.

Every deliberate error of Intently is printed as one line and ends with status 2 (1 where a run was
interrupted, or its folder deleted); the same holds for errors of the operating system, such as a
full disk. Anything else is a bug and shows its traceback.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer import Option
from typer.core import TyperGroup

import intently
from intently.errors import IntentlyError, lacks_memory
from intently.show.labels import lines

MESSAGE = 100_000
"""Characters shown of a line of a message."""

COMMANDS = {
    "demo": ("train", "Train a translator before your eyes; draw what it attends to."),
    "translate": ("translate", "Translate a text, the lines of a file, or standard input (-)."),
    "recipes": ("train", "List the recipes of `intently train --recipe`, or print one."),
    "train": ("train", "Train a translator on your files, or with a recipe."),
    "evaluate": ("evaluate", "Score a translator: BLEU, chrF, exact match, alignment error."),
    "train-lm": ("train_lm", "Train a language model on any text."),
    "write": ("train_lm", "Continue a text with a language model."),
    "watch": ("watch", "Run a model on a text and print what each head attends to."),
    "look": ("watch", "Run a model and write a page with every head of every layer."),
    "play": ("serving", "Type in the browser, watch it translate, cross something out."),
    "heads": ("heads", "Say what every head of a model does."),
    "effects": ("effects", "Switch heads off, or hide words, and say what changes."),
    "explore": ("serving", "Look at a recording of any length in the browser."),
    "check": ("check", "Say which mistake an attention makes, if any."),
    "about": ("app", "Say which versions are installed, and which kernels run here."),
}
"""The module of each command, and the first sentence of its help, to list it without importing."""


class Commands(TyperGroup):
    """The commands by name; each is imported when called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return the command; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        from intently.cli.arguments import Command

        module = import_module(f"intently.cli.{COMMANDS[cmd_name][0]}")
        alone = typer.Typer(add_completion=False)
        alone.command(name=cmd_name, cls=Command)(getattr(module, cmd_name.replace("-", "_")))
        return typer.main.get_command(alone)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Name the nearest command where there is none of a name."""
        if args[0] not in COMMANDS and (near := get_close_matches(args[0], COMMANDS, 1)):
            ctx.fail(f'expected a command; got "{args[0]}". Did you mean {near[0]}?')
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # loading `rich` would take longer than everything else here
)


def _version(asked: bool) -> None:
    if asked:
        print(f"intently {intently.__version__}")
        raise typer.Exit


@app.callback()
def _intently(
    version: Annotated[
        bool,
        Option(
            "--version",
            metavar="",
            help="Print the version and exit.",
            callback=_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Attention you can compute, see and trust."""


def main() -> None:
    """Run the command line."""
    lost = _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = show_warning
    try:
        try:
            app()
        except SystemExit as end:
            if not end.code and lost.tell():
                _end(1, "standard output is closed: what was printed is lost")
            raise
        finally:
            sys.stdout.flush()
    except IntentlyError as error:
        _end(error.status, str(error))
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        _end(2, "not enough memory; choose smaller sizes, or shorter texts")
    except BrokenPipeError:  # drop the remaining output silently
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        if error.strerror is None:
            raise
        name = f"{error.filename}: " if error.filename else _lost_folder()
        _end(2, f"{name}{error.strerror}")


def _end(status: int, message: str) -> NoReturn:
    """Print a message of one line, and end."""
    _say(message)
    raise SystemExit(status) from None


def _say(message: str) -> None:
    print(lines(f"intently: {message}", MESSAGE), file=sys.stderr)


def _lost_folder() -> str:
    """Return what to say before an error of the system that names no file."""
    try:
        os.getcwd()
    except OSError:
        return "the current folder was deleted: "
    return ""


def _open_streams() -> io.StringIO:
    """Open the standard streams that the caller closed; return the buffer for a closed output.

    The system gives the lowest free descriptor to the next opened file: a checkpoint must not
    become the standard output of a library.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    lost = io.StringIO()
    sys.stdout = sys.stdout or lost
    sys.stderr = sys.stderr or io.StringIO()
    return lost


def show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any
) -> None:
    """Print a warning for users as one line of ours, any other as Python does."""
    if issubclass(category, UserWarning):
        _say(str(message))
    else:
        print(warnings.formatwarning(message, category, filename, lineno), file=sys.stderr)


def about() -> None:
    """Say which versions are installed, and which kernels run here."""
    import torch

    from intently import kernels
    from intently.core.kernels.native import loaded
    from intently.tasks.training.checkpoint import versions

    for name, version in versions().items():
        if name != "native":
            print(f"{name:9} {version}")
    print(f"{'installed':9} {_installed()}")
    print(f"{'kernels':9} {', '.join(kernels.available())}")
    if loaded.module is None:
        print(f"{'native':9} not here: {loaded.reason}")
    else:
        pool = {"openmp": "PyTorch's", "own": "its own"}[loaded.module.pool()]
        threads = torch.get_num_threads()
        print(f"{'native':9} {loaded.module.instructions()}, {threads} threads of {pool} pool")


def _installed() -> str:
    """Return the wheel that this code was installed from, or the folder it lies in if none."""
    here = Path(intently.__file__)
    try:
        wheel = distribution("intently")
        if not here.samefile(str(wheel.locate_file("intently/__init__.py"))):
            raise FileNotFoundError
    except (PackageNotFoundError, OSError):
        return f"from no wheel, in {here.parent}"
    tags = [x[5:] for x in (wheel.read_text("WHEEL") or "").splitlines() if x.startswith("Tag: ")]
    kernel = "without" if all(tag.endswith("-any") for tag in tags) else "with"
    return f"from a wheel {kernel} the native kernel, {', '.join(tags)}"
