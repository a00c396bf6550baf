"""``intently heads``: what every head of a model does, measured beside chance."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from intently.cli.arguments import Layers, option
from intently.errors import ArgumentError, build
from intently.observe import heads as measured
from intently.observe.measuring.heads import KINDS
from intently.observe.recording.summary import Table
from intently.tasks.language import TextModel
from intently.tasks.runners import kind_in, open_reader
from intently.tasks.translation.translator import Translator

PRINTED = ("layer", "head", "kind", "effect", "low", "high", "n")
"""The columns that are printed; files hold all."""


def heads(
    folder: Annotated[
        Path | None,
        Argument(
            metavar="[MODEL]",
            help="a folder (a translator, a language model, or one of transformers; the embedded "
            "translator if left out)",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[
        str | None, option("KIND", f"only heads of one kind: {', '.join(KINDS)}")
    ] = None,
    top: Annotated[int, option("N", "rows printed, the strongest first", min=1)] = 20,
    texts: Annotated[int, option("N", "random texts that are read", min=8)] = 16,
    layers: Layers = None,
    csv: Annotated[Path | None, option("FILE", "write the whole table")] = None,
    json: Annotated[Path | None, option("FILE", "write the whole table")] = None,
) -> None:
    """Say what every head of a model does.

    The model reads texts of random tokens: plain, repeated, and with separators. A head is named
    where its weight on what a kind looks for is above chance, for all heads and kinds together.
    """
    if kind is not None and kind not in KINDS:
        raise build(ArgumentError, "--kind", f"one of {', '.join(KINDS)}", repr(kind))
    table = measured(*_opened(folder), texts=texts, layers=layers)
    counts = Counter(table["kind"])
    unnamed = counts.pop("–", 0)
    for name, n in counts.most_common():
        print(f"{n:>5}  {name:<10} {KINDS[name]}")
    print(f"{unnamed:>5}  none of these\n")
    if kind is None:
        shown = table.filter(lambda row: row["kind"] != "–")
    else:
        shown = table.every.filter(kind=kind, named=True)
    shown = shown.sort("effect", reverse=True)
    print(Table(list(shown)[:top], PRINTED, shown.left_out))
    for path, write in ((csv, table.every.csv), (json, table.every.json)):
        if path is not None:
            write(path)


def _opened(folder: Path | None) -> tuple[Any, Any]:
    """The model in a folder, and its tokenizer."""
    found = kind_in(folder)
    if folder is None or found == "translator.json":
        translator = Translator.load(folder)
        sides = translator.source_tokenizer, translator.target_tokenizer
        return translator.model, min(x.size for x in sides)
    if found == "language.json":
        ours = TextModel.load(folder)
        return ours.model, ours.tokenizer
    return open_reader(folder)[:2]
