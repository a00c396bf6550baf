"""A mask as a picture for notebooks: a self-contained SVG for light and dark mode."""

from __future__ import annotations

from html import escape

import torch

from intently.core.masks.closed_forms import EMPTY, FULL, PARTIAL
from intently.core.masks.geometry import Geometry
from intently.core.masks.mask import Mask
from intently.errors import ArgumentError

CELLS = 128
"""The most cells along a side; a larger matrix is drawn by blocks."""
SIDE, CELL = 256, 24
"""The most CSS pixels of the longer side, and of a cell."""
TONES = {EMPTY: 0.07, PARTIAL: 0.4, FULL: 0.85}
"""Opacity of each state in the colour of the text around it."""


def picture(mask: Mask) -> str:
    """Return the rule as HTML: a drawing at the sizes it is made for, and its expression.

    Full cells are dark, empty ones pale; a cell for a block with some allowed entries has a middle
    tone. Where the rule differs between batch rows or heads, the first is drawn. A rule whose parts
    do not fit one matrix is shown as text only.
    """
    text = repr(mask)
    caption = escape(text if len(text) <= 160 else text[:159] + "…")
    t, s = mask.size() or (mask.extent(),) * 2
    g = Geometry(mask.lead(), t, s, torch.device("cpu"))
    try:
        mask.check(g)
    except ArgumentError:
        return f"<code>{caption}</code>"
    first = mask.part((slice(0, 1),) * len(g.lead), g)
    step = max(1, -(-max(t, s) // CELLS))
    g = g._replace(lead=(1,) * len(g.lead))
    if step > 1:
        cells = first.blocks(g, step, step)
    else:
        cells = FULL * first.dense(g).expand(g.shape).reshape(t, s)
    by = "" if step == 1 else f", one cell for {step} × {step}"
    return (
        f'<figure style="margin:0.5em 0;display:inline-block">{_svg(cells.tolist(), caption)}'
        f'<figcaption style="font-size:85%"><code>{caption}</code><br>'
        f"{t} queries (down) × {s} keys (across){by}</figcaption></figure>"
    )


def _svg(cells: list[list[int]], label: str) -> str:
    height, width = len(cells), len(cells[0]) if cells else 0
    scale = min(CELL, SIDE / max(height, width, 1))
    gap = 0.08 if scale >= 8 else 0.0
    paths = "".join(
        f'<path fill="currentColor" fill-opacity="{tone}" d="{_path(cells, state, gap)}"/>'
        for state, tone in TONES.items()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" '
        f'width="{width * scale:.0f}" height="{height * scale:.0f}" '
        f'viewBox="0 0 {width} {height}" style="display:block" '
        f'shape-rendering="{"auto" if gap else "crispEdges"}">{paths}</svg>'
    )


def _path(cells: list[list[int]], state: int, gap: float) -> str:
    """Rectangles over the cells of one state: each alone where there is a gap, else runs."""
    found: list[str] = []
    for y, row in enumerate(cells):
        x = 0
        while x < len(row):
            end = x + 1
            while row[x] == state and not gap and end < len(row) and row[end] == state:
                end += 1
            if row[x] == state:
                w, h = end - x - gap, 1 - gap
                found.append(f"M{x + gap / 2:g} {y + gap / 2:g}h{w:g}v{h:g}h{-w:g}z")
            x = end
    return "".join(found)
