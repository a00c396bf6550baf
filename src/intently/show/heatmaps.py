"""A matrix of any size as one picture, pooled to the paper, with two statistics at its sides."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import torch

from intently.matrix import LazyMatrix
from intently.show.cells import (
    LINE,
    WORD,
    Sheet,
    crowded_limits,
    header,
    height_of,
    name_columns,
    name_rows,
    paint,
    rule,
    width_of,
    wrapped,
)
from intently.show.files import destination, finish
from intently.show.labels import lines, visible
from intently.show.reading import Pooling, flat, missing, names, numbers, picture
from intently.show.style import GRID, QUIET, SIDES, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

CELLS = 512
"""Cells of the picture on each side at most: two pixels each in a file of 200 dots per inch."""

DECADES = 6
MARGIN = 0.12
SIDE = 0.55
GAP = 0.08


def heatmap(
    matrix: LazyMatrix,
    *,
    log: bool = False,
    how: Pooling = "mean",
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw a (t, s) matrix of any size, its entropy per query and what each key receives.

    More than 512 rows or columns are pooled by ``A.pool(…, how)``; of (h, t, s) the mean over
    heads is drawn. ``log`` shades by the logarithm of the weight, over six decades at most;
    otherwise one weight in two hundred of a large matrix may lie beyond the scale, which then
    ends in a point. At the side stands the entropy of each row in nats, below the sum of each
    column, averaged where rows or columns share a cell. Returns the figure, written to ``save``.

    Raises ArgumentError for an empty matrix and an unknown suffix.

    >>> import torch
    >>> from intently.matrix import Dense
    >>> figure = heatmap(Dense(torch.ones(2000, 1000) / 1000))
    >>> figure.axes[0].images[0].get_array().shape
    (512, 512)
    """
    path = destination(save)
    lazy, averaged = flat(matrix)
    values, pooled = picture(lazy, CELLS, how)
    with torch.no_grad():
        sides = numbers(lazy.entropy()), numbers(lazy.received())
    rows, columns = (tuple(map(visible, side)) for side in names(lazy))
    heading = lines(", ".join(part for part in (title, averaged) if part))
    foot = "\n".join(note for note in (pooled, missing(values)) if note)
    with style((*rows, *columns, heading)):
        sheet = _draw(lazy, values, _norm(values, log), (rows, columns), sides, (heading, foot))
        return finish(sheet.figure, path)


def _norm(values: np.ndarray, log: bool) -> Normalize:
    from matplotlib.colors import LogNorm, Normalize

    if not log:
        return Normalize(*crowded_limits(values))
    positive = values[np.isfinite(values) & (values > 0)]
    top = float(positive.max(initial=0.0)) or 1.0
    bottom = max(float(positive.min(initial=top)), top * 10.0**-DECADES)
    return LogNorm(bottom if bottom < top else top / 10, top)


def _draw(
    matrix: LazyMatrix,
    values: np.ndarray,
    norm: Normalize,
    labels: tuple[tuple[str, ...], tuple[str, ...]],
    sides: tuple[np.ndarray, np.ndarray],
    texts: tuple[str, str],
) -> Sheet:
    from matplotlib.colors import LogNorm

    t, s = matrix.shape
    rows, columns = labels
    cell = min(0.4, 4.4 / s, 4.4 / t)
    wide, high = max(s * cell, 1.1), max(t * cell, 1.1)
    size = 8.5 if cell >= 0.2 else 7.0
    word = size * WORD
    counted = tuple(side is None for side in matrix.labels)
    top_labels = header(columns, wide / s, size, wide / word)
    above = size * LINE + 0.05 if counted[1] else top_labels.height
    left = (
        MARGIN
        + 9 * LINE
        + 0.12
        + (width_of([str(t)], size) if counted[0] else width_of(rows, size))
    )
    right = GAP + SIDE + 0.95

    width = left + wide + right
    heading = wrapped(texts[0], width - 2 * MARGIN, 10.5)
    foot = wrapped(texts[1], width - 2 * MARGIN, 7.5) if texts[1] else ""
    top = MARGIN + height_of(heading, 10.5) + 9 * LINE + 0.04 + above
    below = GAP + SIDE + 0.3
    height = top + high + below + (height_of(foot, 7.5) + 0.08 if foot else 0)

    sheet = Sheet.of(width, height)
    axes = sheet.axes(left, top, wide, high)
    low = (norm.vmin or 0.0) / 10 if isinstance(norm, LogNorm) else -np.inf
    shaded = np.maximum(values, low)
    image = paint(axes, shaded, (t, s), norm, aspect="auto")
    if cell >= 0.12:
        rule(axes, (t, s))
    if counted[1]:
        _count(axes, "x", size)
    else:
        name_columns(axes, columns, wide / word, size, top_labels.turn)
    if counted[0]:
        _count(axes, "y", size)
    else:
        name_rows(axes, rows, high / word, size)
    axes.set_xlabel("key steps" if counted[1] else "keys")
    axes.xaxis.set_label_position("top")
    axes.xaxis.set_label_coords(0.5, 1 + (above + 0.02) / high)
    axes.set_ylabel("query steps" if counted[0] else "queries")
    axes.yaxis.set_label_coords(-(left - MARGIN - 9 * LINE) / wide, 0.5)
    _entropy(sheet.axes(left + wide + GAP, top, SIDE, high), sides[0], values.shape[0])
    _received(sheet.axes(left, top + high + GAP, wide, SIDE), sides[1], values.shape[1])
    bar = sheet.axes(left + wide + GAP + SIDE + 0.2, top, 0.11, high)
    beyond = np.isfinite(values) & (values > (norm.vmax or 0.0))
    pointed = "max" if beyond.any() else "neither"
    scale = sheet.figure.colorbar(image, cax=bar, label="weight", extend=pointed)
    scale.outline.set_visible(False)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
    if heading:
        sheet.write(MARGIN, MARGIN, heading, size=10.5)
    if foot:
        sheet.write(left, top + high + below, foot, size=7.5, color=QUIET)
    return sheet


def _count(axes: Axes, side: str, size: float) -> None:
    from matplotlib.ticker import MaxNLocator

    axis = axes.xaxis if side == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))
    axis.set_tick_params(labelsize=size, pad=2)
    if side == "x":
        axes.xaxis.tick_top()


def _entropy(axes: Axes, entropy: np.ndarray, cells: int) -> None:
    levels, edges = _steps(entropy, cells)
    axes.stairs(levels, edges, orientation="horizontal", fill=True, color=SIDES, lw=0)
    axes.set_xlim(0, _end(levels))
    axes.set_ylim(edges[-1], edges[0])
    axes.set_yticks([])
    axes.set_xlabel("entropy (nats)", size=7.5, loc="left")
    _quiet(axes, axes.xaxis)


def _received(axes: Axes, received: np.ndarray, cells: int) -> None:
    levels, edges = _steps(received, cells)
    axes.stairs(levels, edges, fill=True, color=SIDES, lw=0)
    axes.set_ylim(_end(levels), 0)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xticks([])
    axes.set_xlabel("received attention (column sums)", size=7.5)
    _quiet(axes, axes.yaxis)


def _quiet(axes: Axes, axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=3, steps=[1, 2, 5, 10]))
    axis.grid(color=GRID, lw=0.6)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(labelsize=7, length=0, pad=2)


def _steps(values: np.ndarray, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of the values in each of ``cells`` cells, and where the cells end."""
    n = len(values)
    members = np.arange(n) * cells // n
    sums = np.bincount(
        members, np.nan_to_num(values.astype(float), nan=0.0, posinf=0.0, neginf=0.0)
    )
    edges = np.searchsorted(members, np.arange(cells + 1)) - 0.5
    return sums / np.bincount(members), edges


def _end(levels: np.ndarray) -> float:
    return float(levels.max(initial=0.0)) * 1.08 or 1.0
