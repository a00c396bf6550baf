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
from intently.show.cells import highest, name_steps, paint
from intently.show.inputs import as_numbers, as_truths
from intently.show.labels import lines, titled, visible
from intently.show.layout import Layout, destination
from intently.show.reading import edges, numbers, pooled
from intently.show.style import FRAME, QUIET, signed_map, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELLS = 512
STEPS = 32
MOST = 12
"""Panels of batch rows and heads at most; of more, the first."""
ACROSS = 4
LARGEST = 2**30
GAP = 0.22
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
    given = as_truths(mask, "mask")
    shown = as_mask(given)
    steps = 1 if isinstance(given, Tensor) else shown.extent()
    t, s = _sizes(shown.size() or (steps, steps), t, s, words)
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
    if odd := sum(int((np.isnan(panel) | np.isposinf(panel)).sum()) for panel in panels):
        notes.append(f"hatched, too: NaN and +∞, {odd} of the numbers shown")
    top = max((highest(np.abs(panel)) for panel in panels), default=0.0) or 1.0
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
    found = [(), max([tuple(x.shape[:-2]) for x in shown.tensors()], key=len, default=())]
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
    from matplotlib.colors import Normalize

    heading = lines(titled(texts[0]), 90)
    names = [visible(word) for word in words or ()]
    t, s = shape
    across, several = min(len(panels), ACROSS), len(panels) > 1
    cell = min(0.34 if words else 0.22, ((6.4 / across if several else 3.6) - GAP) / max(t, s))
    wide, high = max(cell * s, 0.4), max(cell * t, 0.3)
    size = 8.0 if words and cell >= 0.16 else 6.5
    kind, norm, colours = "row", Normalize(0, 1 / ALLOWED), None
    with style((*names, heading)):
        if top:
            kind, norm, colours = "head", Normalize(-top, top), signed_map()
        layout = Layout(GAP, 0.1)
        for n, values in enumerate(panels):
            row, column = divmod(n, across)
            axes = layout.panel(row, column, wide, high, measured=row == 0 or column == 0)
            hidden = np.where(np.isneginf(values), np.nan, values)
            paint(axes, hidden, shape, norm, colours, cell >= 0.08)
            axes.set(xticks=[], yticks=[])
            if several:
                axes.set_title(f"{kind} {n}", size=8, pad=4, color=QUIET)
            if row == 0 and (words or not several):
                name_steps(axes, "top", names or s, wide, size)
            if column == 0:
                name_steps(axes, "left", names[s - t :] or t, high, size)
            if n == (len(panels) - 1) // across * across:
                axes.set_ylabel("queries", size=8.5)
                axes.set_xlabel("keys", size=8.5)
                axes.xaxis.set_label_position("bottom" if several else "top")
        if top:
            layout.colour_bar((0, across), max(high, 0.9), norm, "", colours, FRAME)
        return layout.finish(heading, "; ".join(texts[1]), path)
