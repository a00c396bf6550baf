"""The command line: ``demo``, ``translate``, ``look``, ``watch``, ``explore``, ``train`` and more.

Every error that Intently raises on purpose is printed as one line and ends with status 2 (1 where a
run was interrupted); so is what the system refuses, such as a full disk. Anything else is a bug and
shows its traceback.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import sys
import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from intently.errors import ArgumentError, DataError, IntentlyError, build
from intently.evaluate_cli import evaluate
from intently.experiments_cli import alignments, lengths
from intently.explore_cli import explore
from intently.language_cli import train_lm
from intently.look_cli import look
from intently.train_cli import recipes, train
from intently.watch_cli import watch

MESSAGE = 100_000
"""Characters of a message's line that are shown."""

A_FILE = re.compile(r"\S*/\S*|\S+\.[A-Za-z][A-Za-z0-9]{0,5}(\.gz)?")
"""What names a file rather than says something."""

app = typer.Typer(
    help="Attention you can compute, see and trust.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line."""
    from intently.show.labels import lines

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = _show_warning
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except IntentlyError as error:
        print(lines(f"intently: {error}", MESSAGE), file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:  # what is left to print goes nowhere, silently
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        if error.strerror is None:
            raise
        name = f"{error.filename}: " if error.filename else ""
        print(lines(f"intently: {name}{error.strerror}", MESSAGE), file=sys.stderr)
        raise SystemExit(2) from None


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any
) -> None:
    from intently.show.labels import lines

    if issubclass(category, UserWarning):
        print(lines(f"intently: {message}", MESSAGE), file=sys.stderr)
    else:
        print(warnings.formatwarning(message, category, filename, lineno), file=sys.stderr)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="where model, result.json and pictures go")] = Path(
        "intently-demo"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="40 seconds, lower quality")] = False,
    thorough: Annotated[bool, typer.Option("--thorough", help="20 minutes, as embedded")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with an interrupted demo")
    ] = False,
) -> None:
    """Watch an attention model learn to translate, translate, and show what it attended to."""
    from rich.console import Console

    from intently import demo as steps

    if quick and thorough:
        raise build(ArgumentError, "--quick, --thorough", "one of them", "both")
    console = Console(soft_wrap=not sys.stdout.isatty())
    size = steps.QUICK if quick else steps.THOROUGH if thorough else steps.USUAL
    result = steps.run(size, out, console, resume=resume)
    again = f"intently demo --out {out}" + (f" --{size.name}" if size.name != "usual" else "")
    if result is None:
        console.print(
            f"interrupted; {out}/model is usable as it is. Go on with:\n  {again} --resume",
            markup=False,
        )
        raise typer.Exit(1)
    steps.table(result, console)
    console.print(
        f"\nPictures are in {out}/pictures; what it looks at is the page {out}/it.html. Now try:\n"
        f'  intently translate "The road was too wide." --show\n'
        f'  intently look "The road was too wide."\n'
        f'  intently translate {out} "Mary gave Paul an apple." --pictures pictures\n'
        f"  intently train SOURCE.txt TARGET.txt --out my-run",
        highlight=False,
        markup=False,
    )


@app.command()
def translate(
    model_and_text: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] [TEXT|FILE|-]",
            help="a model's folder (the embedded translator if left out), and what to translate",
            show_default=False,
        ),
    ],
    beam: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="hypotheses followed at once; 1 is greedy (default: 5, or --n-best if more)",
        ),
    ] = None,
    n_best: Annotated[
        int,
        typer.Option(
            min=1,
            help="translations printed of each line, --beam at most; of several each has three "
            "columns: number of the line, score (log-probability in nats under the length "
            "penalty), translation",
        ),
    ] = 1,
    length_penalty: Annotated[
        float, typer.Option(min=-6, max=6, help="α of Wu et al. 2016, equation 14")
    ] = 0.6,
    show: Annotated[bool, typer.Option("--show", help="print the alignment as blocks")] = False,
    pictures: Annotated[
        Path | None, typer.Option(help="a folder for a picture of each alignment")
    ] = None,
) -> None:
    """Translate a text, the lines of a file, or standard input (-)."""
    from intently import show as figures
    from intently.decoding import SearchOptions
    from intently.models.kinds import cross_heads
    from intently.translator import CHUNK, TranslationWarning, Translator

    model, text = _model_and_text(model_and_text)
    beam = max(5, n_best) if beam is None else beam
    options = SearchOptions(beam=beam, n_best=n_best, length_penalty=length_penalty)
    translator = Translator.load(model)
    if (show or pictures) and not cross_heads(translator.model.options):
        raise build(
            ArgumentError, "--show, --pictures", "a model with attention",
            'one with attention="none"',
            "it knows the source by one vector, and looks at no word",
        )  # fmt: skip
    if pictures:
        pictures.mkdir(parents=True, exist_ok=True)
    typed = text == "-" and sys.stdin.isatty()
    if typed:
        print("intently: type a sentence a line; Ctrl-D ends", file=sys.stderr)
    warnings.simplefilter("always", TranslationWarning)
    found = translator.stream(_lines(text), options, chunk=1 if typed else CHUNK)
    for number, made in enumerate(found, 1):
        for rank, one in enumerate((made, *made.alternatives)):
            shown = _one_line(one.text, raw=not (show or sys.stdout.isatty()))
            print(shown if n_best == 1 else f"{number}\t{one.score:z.4f}\t{shown}", flush=typed)
            drawn = all(side.words for side in one.sides)  # a model may write white space only
            if show and drawn:
                print(figures.blocks(one.alignment))
            if pictures and drawn:
                name = f"alignment-{number:04d}" + (f"-{rank + 1}" if rank else "")
                figures.alignment(one.alignment, save=pictures / f"{name}.png")


def _one_line(text: str, raw: bool) -> str:
    """Return a translation as one line; what goes to a terminal has no control characters."""
    from intently.show.labels import visible

    if raw:
        return text.replace("\r", " ").replace("\n", " ")
    return visible(text, MESSAGE) if text else ""


def _model_and_text(given: list[str]) -> tuple[Path | None, str]:
    if len(given) > 2:
        raise build(
            ArgumentError, "TEXT", "one text in quotes", f"{len(given)} arguments",
            fix='write intently translate "The road was too wide."',
        )  # fmt: skip
    if len(given) == 2:
        return Path(given[0]), given[1]
    return (Path(given[0]), "-") if _is_folder(given[0]) else (None, given[0])


def _is_folder(name: str) -> bool:
    return _exists(name) and Path(name).is_dir()


def _exists(name: str) -> bool:
    try:
        return name != "" and Path(name).exists()
    except OSError:  # a text too long for a file's name
        return False


def _lines(text: str) -> Iterable[str]:
    """Yield the lines of standard input, of a file, or of the text itself."""
    if text == "-":
        yield from _decoded(sys.stdin.buffer, "standard input")
        return
    expected = "a text, a file of sentences, or -"
    if _is_folder(text):
        raise build(DataError, text, expected, "a folder")
    if not _exists(text):
        if A_FILE.fullmatch(text):
            fix = f"to translate the name itself: echo {text} | intently translate -"
            raise build(DataError, text, expected, "no such file or folder", fix=fix)
        yield from (line.removesuffix("\r") for line in text.split("\n"))
        return
    with open(text, "rb") as file:
        packed = file.peek(2).startswith(b"\x1f\x8b")
        yield from _decoded(gzip.GzipFile(fileobj=file) if packed else file, text)


def _decoded(file: Iterable[bytes], name: str) -> Iterable[str]:
    number = 0
    try:
        for number, line in enumerate(file, 1):
            text = line.decode("utf-8")
            yield (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise build(
            DataError, f"{name}:{number}", "UTF-8",
            f"byte {error.object[error.start]:#04x} at byte {error.start + 1} of the line",
            fix="convert the file, for example with iconv -t UTF-8",
        ) from None  # fmt: skip
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        got = f"gzip data that is cut or damaged after line {number:,} ({error})"
        raise build(DataError, name, "lines of text", got) from None


app.command(name="recipes")(recipes)
app.command(name="train")(train)
app.command(name="evaluate")(evaluate)
app.command(name="lengths")(lengths)
app.command(name="alignments")(alignments)
app.command(name="train-lm")(train_lm)
app.command(name="watch")(watch)
app.command(name="look")(look)
app.command(name="explore")(explore)

if __name__ == "__main__":
    main()
