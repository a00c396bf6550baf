"""``intently watch``: the attention of every head on a text, and the content of a recording."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from statistics import median, pstdev
from typing import Annotated

import typer

from intently.cli.arguments import Layers, model_and_text
from intently.errors import ArgumentError, build
from intently.observe import load_recording
from intently.observe.recording.coverage import aligned
from intently.observe.recording.labels import sides
from intently.observe.recording.recording import Entry
from intently.observe.recording.summary import Summary
from intently.show.labels import visible
from intently.show.page import Highlight, items_of, save_page
from intently.show.page.opening import opened_on, opening
from intently.tasks.runners.pretrained import run_picture, runner
from intently.tasks.runners.watched import check_seen, unsure

SHOWN = 12
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


def watch(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] [TEXT]",
            help="a folder (a translator, a language model, or one of transformers; the embedded "
            "translator if left out), and what it reads",
            show_default=False,
        ),
    ] = None,
    layers: Layers = None,
    beam: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="hypotheses kept per step (Intently's translators)"),
    ] = 1,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="save the recording as safetensors")
    ] = None,
    listed: Annotated[
        Path | None, typer.Option("--list", metavar="FILE", help="list the content of a recording")
    ] = None,
) -> None:
    """Run a model on a text and print what each head attends to.

    The three heads that stand out most come first, then a table of all. The model runs unchanged;
    the table is checked against the model's outputs. From a transformers
    folder, only safetensors are read, and none of its code is run.
    """
    if listed is not None:
        if given or layers or save:
            raise build(ArgumentError, "--list", "a recording alone", "something to watch, too")
        print(_listing(listed))
        return
    example = 'intently watch "The road was too wide.", or intently watch MODEL "a text"'
    model, text = model_and_text(given or [], example)
    if text is None:
        fix = f"write {example}"
        raise build(ArgumentError, "TEXT", "one text in quotes", "a folder alone", fix=fix)
    found = runner(model)(model, text, layers, beam)
    check_seen("watch", found.seen)
    if save is not None:
        found.seen.save(save)
    table = found.seen.summary()
    for line in (*found.told, *_measured(table), *unsure(found.seen, table.left_out)):
        print(line)
    if save is not None:
        again = f"it.load_recording({str(save)!r})"
        print(f"{save}: {save.stat().st_size:,} bytes. In Python: {again}", file=sys.stderr)


# --- what is printed ------------------------------------------------------------------------------


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
            narrow = Summary(
                ({n: row[n] for n in columns} for row in narrow), columns, table.left_out
            )
            left_out.insert(0, name)
    yield str(narrow)
    if left_out:
        yield f"\nno room for {', '.join(left_out)}: in Python, print(seen.summary())"


def _remarkable(table: Summary) -> Iterator[tuple[str, ...]]:
    """Return the heads farthest above the middle head in some statistic, in standard deviations."""
    found = []
    for name, does in REMARKABLE.items():
        known = [row for row in table if name in row and row[name] == row[name]]
        values = [row[name] for row in known]
        spread = pstdev(values) if len(values) > NAMED else 0.0
        if spread > 0:
            top, middle = max(known, key=lambda row: row[name]), median(values)
            told = f"{does}: {name} {top[name]:.2f}, median {middle:.2f}"
            found.append(((top[name] - middle) / spread, (top["layer"], f"{top['head']}"), told))
    seen = set()
    for _, place, told in sorted(found, reverse=True):
        if place not in seen and len(seen) < NAMED:
            seen.add(place)
            yield visible(place[0], 200), place[1], told


def _listing(path: Path) -> str:
    """Return the content of a recording, one line for each call."""
    seen = load_recording(path)
    said = [
        f"{path}: {_count(len(seen), 'layer')}, {_count(len(seen.calls), 'call')}, "
        f"{path.stat().st_size:,} bytes"
    ]
    for side in filter(len, sides(seen.tokens)):
        shown = " ".join(visible(token) for token in side[:SHOWN])
        said.append(f"{_count(len(side), 'token')}: {shown}{' …' * (len(side) > SHOWN)}")
    rows = [("layer", "call", "b×h×t×s", "dtype", "source", "bytes", "verified")]
    rows += [_row(entry) for entry in seen.calls]
    return "\n".join([*said, *aligned(rows, right=(1, 5)), *unsure(seen)])


def _row(entry: Entry) -> tuple[str, ...]:
    matrix = entry.attention()
    verdict = {True: "yes", False: "NO", None: "not compared"}[entry.verified]
    size = sum(x.nbytes for x in matrix.problem.tensors())
    return (
        visible(entry.name, 200),
        str(entry.index),
        "×".join(map(str, matrix.shape)),
        str(matrix.dtype).removeprefix("torch."),
        visible(entry.source),
        f"{size:,}",
        verdict,
    )


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' * (n != 1)}"


GUIDED = "guided: taught where to look by links between words, beside the translation"
"""What the page says of a guided head."""

TITLE = 80
"""Characters of a text in its title."""


def look(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT] [TEXT]",
            help="the text to read; several are shown side by side",
            show_default=False,
        ),
    ] = None,
    image: Annotated[
        Path | None, typer.Option(metavar="FILE", help="a picture instead of a text")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="an Intently translator or language model, or a transformers model; the embedded "
            "translator if left out",
        ),
    ] = None,
    layers: Layers = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="the page")] = Path("look.html"),
    full: Annotated[
        bool, typer.Option("--full", help="queries and keys in 32 bits: twice the size")
    ] = False,
    opened: Annotated[bool, typer.Option("--open", help="open the page in the browser")] = False,
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
        named = [(image.name, run_picture(image, model, layers))]
    else:
        named = [
            (visible(text, TITLE), runner(model)(model, text, layers, 1)) for text in texts or ()
        ]
    items, told, taught = [], [], []
    for name, found in named:
        check_seen("look", found.seen)
        lines = [line for line in (*found.told, *unsure(found.seen)) if line]
        made = items_of(found.seen, name, found.sides, "; ".join(lines) or None)
        taught += [
            Highlight(len(items) + n, *found.guided, GUIDED)
            for n, item in enumerate(made)
            if found.guided and found.guided[0] in [layer.name for layer in item.layers]
        ]
        items += made
        told += lines
    start = opening(items)
    if not start:
        start, why = opened_on(items)
        taught += why
    path = save_page(items, out, "full" if full else "half", highlights=taught, start=start)
    for line in told:
        print(line)
    heads = sum(layer.heads for layer in items[0].layers)
    what = f"{len(items)} texts, " if len(items) > 1 else ""
    print(f"{path}: {what}{heads:,} head{'s' * (heads != 1)}, {path.stat().st_size / 1e6:.1f} MB")
    if opened:
        webbrowser.open(path.resolve().as_uri())
