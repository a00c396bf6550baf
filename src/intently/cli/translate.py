"""``intently translate``: a text, the lines of a file, or standard input."""

from __future__ import annotations

import gzip
import os
import re
import sys
import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from intently import show as figures
from intently.cli.arguments import model_and_text
from intently.errors import ArgumentError, DataError, build
from intently.nn.models.kinds import cross_heads
from intently.show.labels import visible
from intently.tasks.corpora.files import LongLineError, lines_of
from intently.tasks.decoding import SearchOptions
from intently.tasks.translation.translator import CHUNK, TranslationWarning, Translator

A_FILE = re.compile(r"\S*/\S*|\S+\.[A-Za-z][A-Za-z0-9]{0,5}(\.gz)?")
"""A text that looks like the name of a file."""

TERMINAL = 100_000
"""Characters of a translation printed in one line of a terminal."""


def translate(
    given: Annotated[
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
            metavar="N",
            help="hypotheses kept per step; 1 is greedy (default: 5, or --n-best if more)",
        ),
    ] = None,
    n_best: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="translations per line, at most --beam; with several, three columns: line number, "
            "score (log-probability in nats under the length penalty), translation",
        ),
    ] = 1,
    length_penalty: Annotated[
        float, typer.Option(min=-6, max=6, metavar="X", help="α of Wu et al. 2016, equation 14")
    ] = 0.6,
    show: Annotated[bool, typer.Option("--show", help="print the alignment as blocks")] = False,
    pictures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="draw each alignment into this folder")
    ] = None,
) -> None:
    """Translate a text, the lines of a file, or standard input (-)."""
    model, text = model_and_text(given, 'intently translate "The road was too wide."')
    text = "-" if text is None else text
    beam = max(5, n_best) if beam is None else beam
    options = SearchOptions(beam=beam, n_best=n_best, length_penalty=length_penalty)
    translator = Translator.load(model)
    if (show or pictures) and not cross_heads(translator.model.options):
        raise build(
            ArgumentError,
            "--show, --pictures",
            "a model with attention",
            'one with attention="none"',
            "it sees the source as one vector, and attends to no word",
        )
    if pictures:
        pictures.mkdir(parents=True, exist_ok=True)
    typed = text == "-" and sys.stdin is not None and sys.stdin.isatty()
    if typed:
        print("intently: type a sentence a line; Ctrl-D ends", file=sys.stderr)
    warnings.simplefilter("always", TranslationWarning)
    found = translator.stream(_lines(text), options, chunk=1 if typed else CHUNK)
    for number, made in enumerate(found, 1):
        for rank, one in enumerate((made, *made.alternatives)):
            shown = _one_line(one.text, raw=not (show or sys.stdout.isatty()))
            print(shown if n_best == 1 else f"{number}\t{one.score:z.4f}\t{shown}", flush=typed)
            drawn = all(side.words for side in one.sides)  # a model may write only white space
            if show and drawn:
                print(figures.blocks(one.alignment))
            if pictures and drawn:
                name = f"alignment-{number:04d}" + (f"-{rank + 1}" if rank else "")
                figures.heatmap(one.alignment, margins=False, save=pictures / f"{name}.png")


def _one_line(text: str, raw: bool) -> str:
    """Return a translation as one line, on a terminal without control characters."""
    if raw:
        return text.replace("\r", " ").replace("\n", " ")
    return visible(text, TERMINAL) if text else ""


def _lines(text: str) -> Iterable[str]:
    """Yield the lines of standard input, of a file, or of the text itself."""
    if text == "-" and sys.stdin is None:
        raise build(DataError, "standard input", "lines of text", "a closed stream")
    if text == "-":
        yield from _decoded(sys.stdin.buffer, "standard input")
        return
    expected = "a text, a file of sentences, or -"
    if os.path.isdir(text):
        raise build(DataError, text, expected, "a folder")
    if not os.path.exists(text):
        if A_FILE.fullmatch(text):
            fix = f"to translate the name itself: echo {text} | intently translate -"
            raise build(DataError, text, expected, "no such file or folder", fix=fix)
        yield from (line.removesuffix("\r") for line in text.split("\n"))
        return
    with open(text, "rb") as file:
        packed = file.peek(2).startswith(b"\x1f\x8b")
        yield from _decoded(gzip.GzipFile(fileobj=file) if packed else file, text)


def _decoded(file: BinaryIO | gzip.GzipFile, name: str) -> Iterable[str]:
    number = 0
    try:
        for number, line in enumerate(lines_of(file), 1):
            text = line.decode("utf-8")
            yield (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise build(
            DataError,
            f"{name}:{number}",
            "UTF-8",
            f"byte {error.object[error.start]:#04x} at byte {error.start + 1} of the line",
            fix="convert the file, for example with iconv -t UTF-8",
        ) from None
    except LongLineError as error:
        raise build(DataError, f"{name}:{number + 1}", "a line of text", str(error)) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        got = f"gzip data that is cut or damaged after line {number:,} ({error})"
        raise build(DataError, name, "lines of text", got) from None
