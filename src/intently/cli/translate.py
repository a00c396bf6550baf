"""``intently translate``: a text, the lines of a file, or standard input."""

from __future__ import annotations

import gzip
import os
import re
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, BinaryIO

from typer import Argument, Option

from intently import show as figures
from intently.cli.arguments import LengthPenalty, model_and_text, option
from intently.errors import ArgumentError, DataError, build
from intently.nn.models.kinds import cross_heads
from intently.show.labels import visible
from intently.tasks.corpora.files import DAMAGED, LongLineError, lines_of, unpacked
from intently.tasks.decoding import SearchOptions
from intently.tasks.translation.translator import CHUNK, TranslationWarning, Translator

A_FILE = re.compile(r"\S*/\S*|\S+\.[A-Za-z][A-Za-z0-9]{0,5}(\.gz)?")
"""A text that looks like the name of a file."""

EXPECTED = "a text, a file of sentences, or -"

TERMINAL = 100_000
"""Characters of a translation printed in one line of a terminal."""


def translate(
    given: Annotated[
        list[str],
        Argument(
            metavar="[MODEL] [TEXT|FILE|-]",
            help="a model's folder (the embedded translator if left out), and what to translate",
            show_default=False,
        ),
    ],
    beam: Annotated[
        int | None,
        option(
            "N", "hypotheses kept per step; 1 is greedy (default: 5, or --n-best if more)", min=1
        ),
    ] = None,
    n_best: Annotated[
        int,
        option(
            "N",
            "translations per line, at most --beam; with several, three columns: line number, "
            "score (log-probability in nats under the length penalty), translation",
            min=1,
        ),
    ] = 1,
    length_penalty: LengthPenalty = 0.6,
    show: Annotated[bool, Option("--show", help="print the alignment as blocks")] = False,
    pictures: Annotated[
        Path | None, option("FOLDER", "draw each alignment into this folder")
    ] = None,
) -> None:
    """Translate a text, the lines of a file, or standard input (-)."""
    model, text = model_and_text(given, 'intently translate "The road was too wide."')
    text = "-" if text is None else text
    beam = max(5, n_best) if beam is None else beam
    options = SearchOptions(beam=beam, n_best=n_best, length_penalty=length_penalty)
    translator = Translator.load(model)
    if (show or pictures) and not cross_heads(translator.model.options):
        expected, got = "a model with attention", 'one with attention="none"'
        why = "it sees the source as one vector, and attends to no word"
        raise build(ArgumentError, "--show, --pictures", expected, got, why)
    if pictures:
        pictures.mkdir(parents=True, exist_ok=True)
    typed = text == "-" and sys.stdin is not None and sys.stdin.isatty()
    if typed:
        print("intently: type a sentence a line; Ctrl-D ends", file=sys.stderr)
    warnings.simplefilter("always", TranslationWarning)
    translations = translator.stream(_lines(text), options, chunk=1 if typed else CHUNK)
    for number, best in enumerate(translations, 1):
        for rank, one in enumerate((best, *best.alternatives)):
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
    if text == "-":
        if sys.stdin is None:
            raise build(DataError, "standard input", "lines of text", "a closed stream")
        yield from _decoded(sys.stdin.buffer, "standard input")
    elif os.path.isdir(text):
        raise build(DataError, text, EXPECTED, "a folder")
    elif os.path.exists(text):
        with open(text, "rb") as file:
            yield from _decoded(unpacked(file), text)
    elif A_FILE.fullmatch(text):
        fix = f"to translate the name itself: echo {text} | intently translate -"
        raise build(DataError, text, EXPECTED, "no such file or folder", fix=fix)
    else:
        yield from (line.removesuffix("\r") for line in text.split("\n"))


def _decoded(file: BinaryIO | gzip.GzipFile, name: str) -> Iterable[str]:
    number = 0
    try:
        for number, line in enumerate(lines_of(file), 1):
            text = line.decode("utf-8")
            yield (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")
    except UnicodeDecodeError as error:
        got = f"byte {error.object[error.start]:#04x} at byte {error.start + 1} of the line"
        fix = "convert the file, for example with iconv -t UTF-8"
        raise build(DataError, f"{name}:{number}", "UTF-8", got, fix=fix) from None
    except LongLineError as error:
        raise build(DataError, f"{name}:{number + 1}", "a line of text", str(error)) from None
    except DAMAGED as error:
        got = f"gzip data that is cut or damaged after line {number:,} ({error})"
        raise build(DataError, name, "lines of text", got) from None
