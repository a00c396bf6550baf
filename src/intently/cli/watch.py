"""``intently watch`` and ``intently look``: the attention of every head, as a table or a page."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
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

    The model runs unchanged; the table is checked against its outputs. From a transformers folder,
    only safetensors are read, and none of its code is run. `intently heads` says what heads do.
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
    """Return one block of the table: the columns that fit its width."""
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
