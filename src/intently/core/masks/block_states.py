"""Closed forms of masks: the states of their blocks, and the queries that see each key.

Blocks are empty, partial or full. The states are ordered numbers: for two rules joined with ``&``,
a block has the minimum of both states, with ``|`` the maximum, and ``~`` reverses the order. If one
of the states is PARTIAL, the block may really be emptier or fuller; EMPTY and FULL are always
certain.

For most rules, the queries that may attend to key j form a regular range: from j on for `causal`,
from j − after to j + before for `window`, every step-th for `dilated`. Intersection (``&``), union
(``|``) and complement (``~``) of such ranges need no entry of the matrix.

`picture` draws a mask for a notebook, a large one by the states of its blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from intently.core.masks.geometry import Geometry
from intently.errors import ArgumentError
from intently.foundation.arrays import valued

if TYPE_CHECKING:
    from intently.core.masks.mask import Mask

EMPTY, PARTIAL, FULL = 0, 1, 2


class Edges(NamedTuple):
    """First and last query (R, 1) and key (1, C) of each block, all included."""

    top: Tensor
    bottom: Tensor
    left: Tensor
    right: Tensor


def edges(g: Geometry, rows: int, cols: int) -> Edges:
    """Return the edges of the blocks of rows × cols entries of the matrix ``g``."""
    top = torch.arange(0, g.t, rows, device=g.device)[:, None]
    left = torch.arange(0, g.s, cols, device=g.device)[None]
    bottom = (top + rows - 1).clamp(max=g.t - 1)
    return Edges(top, bottom, left, (left + cols - 1).clamp(max=g.s - 1))


def image_edges(e: Edges, across: int, width: int) -> tuple[Edges, Edges]:
    """Return the image rows, and the columns, between which the pixels of each block lie.

    Queries are the pixels of an image ``across`` wide, keys of one ``width`` wide. A block that
    reaches into another image row may have pixels in every column.
    """
    rows = Edges(e.top // across, e.bottom // across, e.left // width, e.right // width)
    queries = _columns(e.top, e.bottom, rows.top == rows.bottom, across)
    return rows, Edges(*queries, *_columns(e.left, e.right, rows.left == rows.right, width))


def _columns(first: Tensor, last: Tensor, one_row: Tensor, width: int) -> tuple[Tensor, Tensor]:
    last = torch.where(one_row, last % width, width - 1)
    return torch.where(one_row, first % width, 0), last


def states(g: Geometry, rows: int, cols: int, empty: Tensor, full: Tensor) -> Tensor:
    """Return int8 (⌈t/rows⌉, ⌈s/cols⌉) from the blocks known to be empty or full."""
    found = full.to(torch.int8) - empty.to(torch.int8) + PARTIAL
    return found.expand(-(-g.t // rows), -(-g.s // cols))


def reduced(allow: Tensor, rows: int, cols: int) -> Tensor:
    """Return the states of the blocks of a materialised rule, (…, t or 1, s or 1)."""
    t, s = allow.shape[-2:]
    rows, cols = rows if t > 1 else 1, cols if s > 1 else 1
    t, s = -(-t // rows), -(-s // cols)
    if not allow.numel():
        return torch.full((t, s), EMPTY + FULL, dtype=torch.int8, device=allow.device)
    allow = allow.reshape(-1, *allow.shape[-2:])
    bands = allow.split(rows * step_within(rows * allow.shape[-1], 2**21), 1)
    return torch.cat([_band(band, rows, cols) for band in bands])


def _band(allow: Tensor, rows: int, cols: int) -> Tensor:
    some, every = most(allow, 0), least(allow, 0)
    return _over(some, rows, cols, most, 0) + _over(every, rows, cols, least, 1)


def most(x: Tensor, axis: int) -> Tensor:
    """``any`` as bytes, which PyTorch reduces many times faster than booleans."""
    return x.view(torch.uint8).amax(axis) if valued(x) else x.any(axis)


def least(x: Tensor, axis: int) -> Tensor:
    """``all`` as bytes."""
    return x.view(torch.uint8).amin(axis)


def _over(
    x: Tensor, rows: int, cols: int, reduce: Callable[[Tensor, int], Tensor], fill: int
) -> Tensor:
    """Reduce each block of x (t, s), bytes."""
    t, s = x.shape
    x = F.pad(x, (0, -s % cols, 0, -t % rows), value=fill)
    x = x.unflatten(0, (-1, rows)).unflatten(-1, (-1, cols))
    return reduce(reduce(x, -1), -2).to(torch.int8)


def step_within(size: int, memory: int) -> int:
    """The number of rows of ``size`` entries that fit in ``memory`` entries, at least one."""
    return max(1, memory // max(1, size))


MOST = 8
"""Rules made of more ranges of queries than this are evaluated entry by entry."""


class Queries(NamedTuple):
    """For each key, queries first, first + step, … up to last (…, s); none where first > last."""

    first: Tensor
    last: Tensor
    step: int = 1

    def meet(self, other: Queries) -> Queries | None:
        """Return the queries in both; None where two different steps meet."""
        if self.step > 1 and other.step > 1:
            return None
        strided = self if self.step > 1 else other
        first = torch.maximum(self.first, other.first)
        if strided.step > 1:
            first = first + (strided.first - first) % strided.step
        return Queries(first, torch.minimum(self.last, other.last), strided.step)

    def others(self, t: int) -> list[Queries] | None:
        """Return the queries of t that are not in it; None for strides."""
        if self.step > 1:
            return None
        none = torch.zeros_like(self.first)
        before = Queries(none, (self.first - 1).clamp(max=t - 1))
        after = Queries((self.last + 1).clamp(min=0), none + (t - 1))
        return [before, after]


Rows = list[Queries] | None
"""The queries of each key as a union; None where no closed form is known."""


def both(left: Rows, right: Rows) -> Rows:
    """Return the queries in both unions."""
    if left is None or right is None or len(left) * len(right) > MOST:
        return None
    met = [a.meet(b) for a, b in product(left, right)]
    found = [m for m in met if m is not None]
    return found if len(found) == len(met) else None


def either(left: Rows, right: Rows) -> Rows:
    """Return the queries in at least one union."""
    if left is None or right is None or len(left) + len(right) > MOST:
        return None
    return left + right


def neither(rows: Rows, t: int) -> Rows:
    """Return the queries of t that are not in the union."""
    if rows is None:
        return None
    found: Rows = rows[0].others(t)
    for row in rows[1:]:
        found = both(found, row.others(t))
    return found


def any_of(rows: list[Queries]) -> Tensor:
    """Whether each key has a query (…, s)."""
    found = rows[0].first <= rows[0].last
    for row in rows[1:]:
        found = found | (row.first <= row.last)
    return found


def unless_all(seen: Tensor) -> Tensor | None:
    """Return None if every key is seen; not checked on an accelerator or in a graph."""
    if seen.device.type != "cpu" or not valued(seen):
        return seen
    return None if bool(seen.all()) else seen


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
