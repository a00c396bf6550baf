"""Why scores are divided by √d: without it, weights of wide heads are nearly one-hot."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from intently.attention_matrix import Attention, attend
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.show.files import destination, finish
from intently.show.labels import titled
from intently.show.sheet import End, Sheet, heading_of, name_ends, name_panel, open_axes
from intently.show.style import FRAME, LINES, QUIET, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARGIN = 0.12
LEFT, WIDE, HIGH, BETWEEN, RIGHT = 0.5, 2.5, 1.9, 0.55, 0.95
ABOVE, BELOW = 0.34, 0.55
NAMES = "q · k / √d", "q · k"


def scaling(
    matrices: Sequence[Attention],
    *,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw what the factor 1/√d does to heads of several widths d, with it and without it.

    Each of ``matrices`` (…, t, s) holds queries and keys of its own width d, and as many keys s as all
    others; the scores are their dot products. On the left the mean entropy of a query's weights, in
    nats, with that of equal weights as a dashed line; on the right 1 − Σ w², the trace of the
    derivative of the softmax: where it is near 0, hardly any gradient passes. Returns the figure,
    written to ``save``.

    Raises ArgumentError for fewer than two widths or different numbers of keys, KindError for
    matrices without queries and keys. Source: Vaswani et al. 2017, "Attention Is All You Need",
    section 3.2.1.

    >>> heads = [attend(torch.randn(64, d), torch.randn(256, d)) for d in (4, 64, 1024)]
    >>> entropy, gradient = scaling(heads).axes
    >>> scaled, plain = (line.get_ydata() for line in entropy.lines[:2])
    >>> bool(plain[-1] < 0.5 < 4 < scaled[-1])
    True
    """
    path = destination(save)
    found = sorted(_checked(matrices), key=lambda A: A.q.shape[-1])
    widths = [A.q.shape[-1] for A in found]
    measures = np.array([[_measured(A, scale) for A in found] for scale in (None, 1.0)])
    with style():
        width = LEFT + 2 * WIDE + BETWEEN + RIGHT
        heading, tall = heading_of(titled(title), width - 2 * MARGIN)
        top = MARGIN + tall + ABOVE
        sheet = Sheet.of(width, top + HIGH + BELOW)
        names = "entropy of the weights, in nats", "slope of the softmax, 1 − Σ w²"
        for n, name in enumerate(names):
            axes = sheet.axes(LEFT + n * (WIDE + BETWEEN), top, WIDE, HIGH)
            _plot(axes, widths, measures[..., n])
            name_panel(axes, name, HIGH)
            if n == 0:
                most = math.log(found[0].shape[-1])
                axes.axhline(most, color=FRAME, lw=1, ls="--", zorder=0.5)
                axes.text(widths[0], most, "equal weights", size=7.5, color=QUIET, va="bottom")
                axes.set_ylim(0, most * 1.12)
            else:
                axes.set_ylim(0, 1.04)
                ends = zip(measures[:, -1, n], NAMES, LINES, strict=False)
                places = [End(widths[-1], y, name, colour) for y, name, colour in ends]
                name_ends(axes, places, axes.transData)
        sheet.write(MARGIN, MARGIN, heading)
        return finish(sheet.figure, path)


def _checked(matrices: Sequence[Attention]) -> list[Attention]:
    if not isinstance(matrices, Sequence) or isinstance(matrices, str):
        expected = "a list of attentions, one for each width d"
        raise build(KindError, "matrices", expected, type(matrices).__name__)
    for n, A in enumerate(matrices):
        if not isinstance(A, Attention):
            expected, fix = "an attention of queries and keys", "make it: it.attend(q, k)"
            raise build(KindError, f"matrices[{n}]", expected, type(A).__name__, fix=fix)
        if A.shape[-1] != matrices[0].shape[-1]:
            expected = f"s={matrices[0].shape[-1]} keys, as in the first"
            cause = "entropy grows with the number of keys"
            raise build(ArgumentError, f"matrices[{n}]", expected, shape_of(A), cause)
    if len({A.q.shape[-1] for A in matrices}) < 2:
        raise build(ArgumentError, "matrices", "at least two widths d", f"{len(matrices)} matrices")
    return list(matrices)


def _measured(A: Attention, scale: float | None) -> tuple[float, float]:
    """The mean entropy of the rows, and their mean 1 − Σ w²."""
    with torch.no_grad():
        again = attend(A.q, A.k, scale=scale)
        weights = again.dense().double()
        return float(again.entropy().mean()), float(1 - weights.square().sum(-1).mean())


def _plot(axes: Axes, widths: Sequence[int], lines: np.ndarray) -> None:
    for line, colour, mark in zip(lines, LINES, ("o", "s"), strict=False):
        axes.plot(widths, line, color=colour, lw=1.6, marker=mark, ms=4, clip_on=False)
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [str(d) for d in widths])
    axes.minorticks_off()
    axes.set_xlabel("width d of the head", color=QUIET, size=8)
    open_axes(axes, "y")
