"""``intently watch`` and ``intently look``: the attention of every head, as a table or a page."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from statistics import median, pstdev
from typing import Annotated

from typer import Argument, Option

from intently.cli.arguments import Layers, ModelAndText, Open, model_with_text, option
from intently.errors import ArgumentError, build
from intently.observe import load_recording
from intently.observe.recording.coverage import aligned
from intently.observe.recording.labels import sides
from intently.observe.recording.recording import Entry
from intently.observe.recording.summary import Summary
from intently.show.labels import visible
from intently.show.page import Highlight, items_of, save_page
from intently.show.page.opening import opened_on, opening
from intently.tasks.runners import check_seen, unsure, watched, watched_picture

LISTED = 12
"""Tokens of a recording listed."""

REMARKABLE = {
    "entropy": "spreads its weight most evenly",
    "confidence": "gives most to a single key",
    "sink": "looks most at the first key",
    "self": "looks most at its own position",
    "previous": "looks most at the position before",
    "duplicate": "looks most at copies of its token",
    "induction": "looks most at what followed copies of its token",
    "distance": "looks farthest",
    "divergence": "differs most from the other heads of its layer",
}
"""What the head with the largest value of a statistic does."""

NAMED = 3
"""Heads named above the table."""

TITLE = 80
"""Characters of a text in its title."""

GUIDED = "guided: taught where to look by links between words, beside the translation"
"""What the page says of a guided head."""


def watch(
    given: ModelAndText = None,
    layers: Layers = None,
    beam: Annotated[
        int, option("N", "hypotheses kept per step (Intently's translators)", min=1)
    ] = 1,
    save: Annotated[Path | None, option("FILE", "save the recording as safetensors")] = None,
    listed: Annotated[
        Path | None, option("FILE", "list the content of a recording", "--list")
    ] = None,
) -> None:
    """Run a model on a text and print what each head attends to.

    The three heads that stand out most come first, then a table of all. The model runs unchanged;
    the table is checked against the model's outputs. From a transformers folder, only safetensors
    are read, and none of its code is run.
    """
    if listed is not None:
        if given or layers or save:
            raise build(ArgumentError, "--list", "a recording alone", "something to watch, too")
        print(_listing(listed))
        return
    example = 'intently watch "The road was too wide.", or intently watch MODEL "a text"'
    run = watched(*model_with_text(given, example), layers, beam)
    check_seen("watch", run.seen)
    if save is not None:
        run.seen.save(save)
    table = run.seen.summary()
    for line in (*run.lines, *_measured(table), *unsure(run.seen, table.left_out)):
        print(line)
    if save is not None:
        again = f"it.load_recording({str(save)!r})"
        print(f"{save}: {save.stat().st_size:,} bytes. In Python: {again}", file=sys.stderr)


def _measured(table: Summary) -> Iterator[str]:
    """Return the remarkable heads, and one block of the table: the columns that fit its width."""
    named = list(_remarkable(table))
    if named:
        yield from (*aligned(named, right=(1,)), "")
    left_out: list[str] = []
    narrow = table
    for name in ("queries", "confidence", *reversed(table.columns)):
        if "\n\n" not in str(narrow):
            break
        if name in narrow.columns and name not in ("layer", "item", "head"):
            columns = [column for column in narrow.columns if column != name]
            rows = ({n: row[n] for n in columns} for row in narrow)
            narrow = Summary(rows, columns, table.left_out)
            left_out.insert(0, name)
    yield str(narrow)
    if left_out:
        yield f"\nno room for {', '.join(left_out)}: in Python, print(seen.summary())"


def _remarkable(table: Summary) -> Iterator[tuple[str, ...]]:
    """Return the heads farthest above the middle head in some statistic, in standard deviations."""
    extremes = []
    for name, does in REMARKABLE.items():
        known = [row for row in table if name in row and row[name] == row[name]]
        values = [row[name] for row in known]
        spread = pstdev(values) if len(values) > NAMED else 0.0
        if spread > 0:
            top, middle = max(known, key=lambda row: row[name]), median(values)
            line = f"{does}: {name} {top[name]:.2f}, median {middle:.2f}"
            extremes.append(((top[name] - middle) / spread, (top["layer"], f"{top['head']}"), line))
    named = set()
    for _, place, line in sorted(extremes, reverse=True):
        if place not in named and len(named) < NAMED:
            named.add(place)
            yield visible(place[0], 200), place[1], line


def _listing(path: Path) -> str:
    """Return the content of a recording, one line for each call."""

    def count(n: int, noun: str) -> str:
        return f"{n:,} {noun}{'s' * (n != 1)}"

    seen = load_recording(path)
    size = f"{path.stat().st_size:,} bytes"
    lines = [f"{path}: {count(len(seen), 'layer')}, {count(len(seen.calls), 'call')}, {size}"]
    for side in filter(len, sides(seen.tokens)):
        tokens = " ".join(map(visible, side[:LISTED])) + " …" * (len(side) > LISTED)
        lines.append(f"{count(len(side), 'token')}: {tokens}")
    rows = [("layer", "call", "b×h×t×s", "dtype", "source", "bytes", "verified")]
    rows += [_row(entry) for entry in seen.calls]
    return "\n".join([*lines, *aligned(rows, right=(1, 5)), *unsure(seen)])


def _row(entry: Entry) -> tuple[str, ...]:
    matrix = entry.attention()
    return (
        visible(entry.name, 200),
        str(entry.index),
        "×".join(map(str, matrix.shape)),
        str(matrix.dtype).removeprefix("torch."),
        visible(entry.source),
        f"{sum(x.nbytes for x in entry.tensors()):,}",
        {True: "yes", False: "NO", None: "not compared"}[entry.verified],
    )


def look(
    texts: Annotated[
        list[str] | None,
        Argument(
            metavar="[TEXT] [TEXT]",
            help="the text to read; several are shown side by side",
            show_default=False,
        ),
    ] = None,
    image: Annotated[Path | None, option("FILE", "a picture instead of a text")] = None,
    model: Annotated[
        Path | None,
        option(
            "FOLDER",
            "an Intently translator or language model, or a transformers model; the embedded "
            "translator if left out",
        ),
    ] = None,
    layers: Layers = None,
    out: Annotated[Path, option("FILE", "the page")] = Path("look.html"),
    full: Annotated[
        bool, Option("--full", help="queries and keys in 32 bits: twice the size")
    ] = False,
    opened: Open = False,
) -> None:
    """Run a model and write a page with every head of every layer.

    The page is one file that needs no network; --open opens it in the browser. The model runs
    unchanged. From a transformers folder, only safetensors are read, and none of its code is run.
    """
    if bool(texts) == (image is not None):
        got = "both" if texts else "neither"
        fix = 'write intently look "The road was too wide.", or intently look --image cat.png'
        raise build(ArgumentError, "TEXT, --image", "a text or a picture", got, fix=fix)
    if image is not None:
        named = [(image.name, watched_picture(image, model, layers))]
    else:
        named = [(visible(text, TITLE), watched(model, text, layers)) for text in texts or ()]
    items, printed, highlights = [], [], []
    for name, run in named:
        check_seen("look", run.seen)
        lines = [line for line in (*run.lines, *unsure(run.seen)) if line]
        for item in items_of(run.seen, name, run.sides, "; ".join(lines) or None):
            if run.guided and run.guided[0] in [layer.name for layer in item.layers]:
                highlights.append(Highlight(len(items), *run.guided, GUIDED))
            items.append(item)
        printed += lines
    start = opening(items)
    if not start:
        start, why = opened_on(items)
        highlights += why
    path = save_page(items, out, "full" if full else "half", highlights=highlights, start=start)
    for line in printed:
        print(line)
    heads = sum(layer.heads for layer in items[0].layers)
    what = f"{len(items)} texts, " if len(items) > 1 else ""
    print(f"{path}: {what}{heads:,} head{'s' * (heads != 1)}, {path.stat().st_size / 1e6:.1f} MB")
    if opened:
        webbrowser.open(path.resolve().as_uri())
