"""Masks and biases as pictures: which query may attend to which key, and added numbers."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from intently.core.biases import Bias, as_bias
from intently.core.masks import Geometry, Mask
from intently.core.masks.mask import as_mask
from intently.errors import ArgumentError, IntentlyError, build
from intently.foundation.arrays import Numbers
from intently.foundation.checks import whole_number
from intently.foundation.values import Value
from intently.show.cells import count_steps, header, name_columns, name_rows, paint, rule
from intently.show.files import destination, finish
from intently.show.inputs import as_numbers, as_truths
from intently.show.labels import lines, titled, visible
from intently.show.reading import edges, numbers, pooled
from intently.show.sheet import NOTES, WORD, Sheet, few_ticks, height_of, width_of, wrapped
from intently.show.style import FRAME, QUIET, signed_map, style, weight_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELLS = 512
STEPS = 32
MOST = 12
"""Panels of batch rows and heads at most; of more, the first."""
ACROSS = 4
LARGEST = 2**30
MARGIN = 0.14
GAP = 0.22
TITLE = 9.5
ALLOWED = 0.72
"""Where on the scale of weights an allowed cell stands: a blue on which lines still show."""


def mask(
    mask: Mask | Tensor | np.ndarray | Sequence[Any],
    t: int | None = None,
    s: int | None = None,
    *,
    words: Sequence[str] | None = None,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw which query may attend to which key: blue cells may, white cells may not.

    ``mask`` is a mask, or booleans (…, t, s), True where it is allowed: a tensor, an array or
    nested lists.
    ``t`` and ``s`` are the sizes of the matrix; by default the sizes that the mask requires or
    suggests; ``words`` name queries and keys, the last t of them the queries. A mask that differs
    between batch rows or heads has a panel for each, at most twelve. Beyond 512 rows or columns, a
    cell shows the share of allowed entries. Returns the figure, written to ``save``.

    Raises ArgumentError for sizes that the mask does not fit, more than 2³⁰ entries, and an unknown
    suffix; KindError for anything but a mask.

    >>> import intently as it
    >>> mask(it.causal(), 4).axes[0].images[0].get_array().sum()
    np.float64(10.0)
    """
    path = destination(save)
    shown = as_mask(as_truths(mask, "mask"))
    t, s = _sizes(shown.size() or (shown.extent(), shown.extent()), t, s, words)
    g = Geometry(shown.lead(), t, s, torch.device("cpu"))
    moved = shown.replaced(lambda x: x.cpu())
    moved.check(g)
    places = _leads(g.lead)
    if t * s * len(places) > LARGEST:
        raise build(
            ArgumentError,
            "mask",
            f"at most {LARGEST:,} entries in all panels",
            f"{t * s * len(places):,}",
            "every entry is asked",
            "a rule looks the same at smaller sizes: t=1024, s=1024",
        )
    panels = [_share(moved, g, at) for at in places]
    notes = [*_differ(g.lead), "blue attends, blank does not"]
    if max(t, s) > CELLS:
        notes[-1:] = [pooled((t, s), CELLS, "share", "entries"), "blue attends"]
    return _draw(panels, (t, s), words, None, (title or repr(shown), notes), path)


def bias(
    bias: Bias | Numbers,
    t: int | None = None,
    s: int | None = None,
    *,
    words: Sequence[str] | None = None,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw what a bias adds to the scores: blue above 0, sand below, a panel for each head.

    ``bias`` is a bias, or numbers (…, t, s): a tensor, an array or nested lists.
    ``t`` and ``s`` are the sizes of the matrix; by default a tensor's own, else 32; ``words`` name
    queries and keys, the last t of them the queries. At most twelve heads are drawn, and more than
    512 rows or columns are thinned. −∞, which hides a key, is hatched. Returns the figure,
    written to ``save``.

    Raises ArgumentError for sizes that the bias does not fit, and an unknown suffix.

    >>> import intently as it
    >>> [axes.get_title() for axes in bias(it.alibi(2), 8).axes[:2]]
    ['head 0', 'head 1']
    """
    path = destination(save)
    given = bias if isinstance(bias, Bias) else as_numbers(bias, "bias")
    shown = as_bias(given).replaced(lambda x: x.detach().cpu())
    own = (STEPS, STEPS)
    if isinstance(given, Tensor) and given.ndim >= 2:
        own = (given.shape[-2], given.shape[-1])
    t, s = _sizes(own, t, s, words)
    values = added(shown, t, s, CELLS)
    lead = values.shape[:-2]
    panels = [values[at] for at in _leads(lead)]
    notes = _differ(lead)
    if max(t, s) > CELLS:
        notes.append(f"one in {-(-t // CELLS)} × {-(-s // CELLS)} of {t} × {s} numbers")
    if any(np.isneginf(panel).any() for panel in panels):
        notes.append("hatched: −∞, cannot be attended to")
    every = np.concatenate([panel[np.isfinite(panel)] for panel in panels])
    top = float(np.abs(every).max(initial=0.0)) or 1.0
    said = title or repr(given if isinstance(given, Bias) else shown)
    return _draw(panels, (t, s), words, top, (said, notes), path)


def _sizes(
    own: tuple[int, int], t: int | None, s: int | None, words: Sequence[str] | None
) -> tuple[int, int]:
    if t is None and words is not None:
        t = len(words)
    t, s = (own[0], s or own[1]) if t is None else (t, s or t)
    for name, size in (("t", t), ("s", s)):
        whole_number(size, name, 1)
    if words is not None and (len(words) != s or t > s):
        raise build(ArgumentError, "words", f"{s} words, one for each key", f"{len(words)}")
    return t, s


def added(shown: Bias, t: int, s: int, cells: int) -> np.ndarray:
    """Return the numbers of a bias (…, t, s), thinned to at most ``cells`` rows and columns."""
    lead = _lead_of(shown, t, s)
    g = Geometry(lead, t, s, torch.device("cpu"))
    shown.check(g)
    rows, columns = (torch.arange(0, n, -(-n // cells)) for n in (t, s))
    return numbers(shown.tile(g, rows, columns).expand(*lead, len(rows), len(columns)))


def _lead_of(shown: Bias, t: int, s: int) -> tuple[int, ...]:
    """Return the leading axes of a bias: those of its tensors, or its number of heads."""
    shapes = [tuple(x.shape[:-2]) for x in shown.tensors()]
    found = [(), max(shapes, key=len, default=())]
    found += [(n,) for x in shown.tensors() for n in x.shape]
    found += [(count,) for count in _counts(shown)]
    for lead in found:
        try:
            g = Geometry(lead, t, s, torch.device("cpu"))
            shown.check(g)
            shown.tile(g, torch.arange(1), torch.arange(1)).expand(*lead, 1, 1)
        except (IntentlyError, RuntimeError):
            continue
        return lead
    return ()


def _counts(shown: Value) -> list[int]:
    """Return the numbers among a value's arguments, which may be the number of heads."""
    found = [part for part in shown.parts if type(part) is int and part > 0]
    inner = [part for part in shown.parts if isinstance(part, Value)]
    return found + [count for part in inner for count in _counts(part)]


def _leads(lead: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [tuple(map(int, np.unravel_index(n, lead))) for n in range(min(math.prod(lead), MOST))]


def _differ(lead: tuple[int, ...]) -> list[str]:
    count = math.prod(lead)
    return [f"the first {MOST} of {count}"] if count > MOST else []


def _share(shown: Mask, g: Geometry, at: tuple[int, ...]) -> np.ndarray:
    """Return the share of allowed entries of each cell, a band of rows at a time."""
    part = shown.part(at, g)
    own = g._replace(lead=())
    down, across = edges(0, g.t, CELLS), edges(0, g.s, CELLS)
    columns = torch.arange(g.s)
    found = []
    for first, last in pairwise(down):
        allow = part.allow(own, torch.arange(int(first), int(last)), columns)
        band = allow.expand(int(last - first), g.s).sum(0, dtype=torch.float64).numpy()
        found.append(np.add.reduceat(band, across[:-1]) / (last - first) / np.diff(across))
    return np.stack(found)


def _draw(
    panels: Sequence[np.ndarray],
    shape: tuple[int, int],
    words: Sequence[str] | None,
    top: float | None,
    texts: tuple[str, Sequence[str]],
    path: Path | None,
) -> Figure:
    """Draw the shares of masks, or biases from −``top`` to ``top``."""
    heading = lines(titled(texts[0]), 90)
    names = tuple(visible(word) for word in words or ())
    with style((*names, heading)):
        return finish(_sheet(panels, shape, names, top, (heading, "; ".join(texts[1]))), path)


def _sheet(
    panels: Sequence[np.ndarray],
    shape: tuple[int, int],
    words: tuple[str, ...],
    top: float | None,
    texts: tuple[str, str],
) -> Figure:
    from matplotlib.colors import Normalize

    t, s = shape
    across = min(len(panels), ACROSS)
    down = -(-len(panels) // across)
    room = (3.6 if across == 1 else 6.4 / across) - GAP
    cell = min(0.34 if words else 0.22, room / max(t, s))
    wide, high = max(cell * s, 0.4), max(cell * t, 0.3)
    size = 8.0 if cell >= 0.16 else 6.5
    above = header(words, cell, size, wide / (size * WORD)) if words else None
    named = 0.2 if len(panels) > 1 else 0.0
    before = 0.3 + (width_of(words, size) if words else width_of([str(t)], 7))
    head = (above.height if above else 0.17 if len(panels) == 1 else 0.0) + 0.19 + named
    overhang = max(0.1, above.overhang if above else 0.0)
    width = MARGIN + before + across * wide + (across - 1) * GAP + overhang
    width = max(width + (0.75 if top else MARGIN), 3.0)
    heading = wrapped(texts[0], width - 2 * MARGIN, TITLE)
    foot = wrapped(texts[1], width - 2 * MARGIN, NOTES)
    first = MARGIN + height_of(heading, TITLE) + 0.04
    below = first + head + down * high + (down - 1) * (GAP + named) + 0.1

    sheet = Sheet.of(width, below + height_of(foot, NOTES) + 0.06)
    kind, norm, colours = "row", Normalize(0, 1 / ALLOWED), weight_map()
    if top:
        kind, norm, colours = "head", Normalize(-top, top), signed_map()
    for n, values in enumerate(panels):
        row, column = divmod(n, across)
        left = MARGIN + before + column * (wide + GAP)
        axes = sheet.axes(left, first + head + row * (high + GAP + named), wide, high)
        hidden = np.where(np.isneginf(values), np.nan, values)
        paint(axes, hidden, shape, norm, "auto", colours)
        if cell >= 0.08:
            rule(axes, shape)
        axes.set(xticks=[], yticks=[])
        if len(panels) > 1:
            axes.set_title(f"{kind} {n}", size=8, pad=2, color=QUIET)
        elif not words:
            count_steps(axes, "x", s, 7, min(6, s))
        if above and row == 0:
            name_columns(axes, words, wide / (size * WORD), size, above.turn)
        if words and column == 0:
            name_rows(axes, words[s - t :], high / (size * WORD), size)
        elif column == 0:
            count_steps(axes, "y", t, 7, min(6, t))
    middle = MARGIN + before + (across * (wide + GAP) - GAP) / 2
    centre = first + head + (down * (high + GAP + named) - GAP - named) / 2
    sheet.write(middle, first + 0.02, "keys", size=8.5, ha="center")
    sheet.write(MARGIN + 0.02, centre, "queries", size=8.5, rotation=90, va="center")
    if top:
        place = width - 0.62, first + head, 0.1, max(high, 0.9)
        bar = sheet.colour_bar(place, norm, colours, FRAME, 7, format="{x:.3g}")
        few_ticks(bar.yaxis, 5)
    sheet.write(MARGIN, MARGIN, heading, size=TITLE)
    sheet.note(MARGIN, below - 0.01, foot)
    return sheet.figure
