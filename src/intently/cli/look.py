"""``intently look``: a page of a model's attention on texts or a picture."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from intently.cli.arguments import Layers
from intently.errors import ArgumentError, build
from intently.show.labels import visible
from intently.show.page import Highlight, items_of, save_page
from intently.show.page.opening import opened_on, opening
from intently.tasks.runners.pretrained import run_picture, runner
from intently.tasks.runners.watched import check_seen, unsure

GUIDED = "guided: taught where to look by links between words, beside the translation"
"""What the page says of a guided head."""

NAMED = 80
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
            (visible(text, NAMED), runner(model)(model, text, layers, 1)) for text in texts or ()
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
