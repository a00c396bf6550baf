"""A matrix of any size as one picture, pooled to fit, with two statistics at its sides."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch

from intently.errors import ArgumentError, build
from intently.foundation.checks import check_word
from intently.matrix import LazyMatrix
from intently.show import reading
from intently.show.cells import (
    count_steps,
    crowded_limits,
    ground,
    header,
    name_columns,
    name_rows,
    name_sides,
    paint,
    rule,
)
from intently.show.choosing import Choice, Source, one_of
from intently.show.figures.survey import Survey, survey
from intently.show.files import destination, finish
from intently.show.given import Plain
from intently.show.labels import shown, titled
from intently.show.reading import Names, Pooling
from intently.show.sheet import (
    HEADING,
    LINE,
    NOTES,
    WORD,
    Sheet,
    captions,
    few_ticks,
    height_of,
    width_of,
)
from intently.show.style import GRID, SIDES, signed_map, style, weight_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure

CELLS = 512
"""Cells of the picture on each side at most: two pixels each in a file of 200 dots per inch."""

SINKS = ("show", "hide")
DECADES = 6
MARGIN = 0.12
SIDE = 0.55
GAP = 0.08

Scale = Literal["linear", "log"]
Sink = Literal["show", "hide"]


def heatmap(
    matrix: Source,
    *,
    head: Choice = None,
    scale: Scale = "linear",
    sink: Sink = "show",
    how: Pooling = "mean",
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw a (t, s) matrix of any size, its entropy per query and what each key receives.

    Plain numbers, a tensor, an array or nested lists, are drawn as weights if no number is below 0
    and each row sums to 1 or 0; otherwise as plain numbers, without the statistics of weights.

    Of (h, t, s) ``head`` chooses one, else their mean is drawn; of a recording, or of matrices by
    name, it is ``"name"`` or ``("name", head)``. More than 512 rows or columns are pooled as
    ``A.pool(…, how)`` does, and the colour bar says so: a mean hides single weights, which
    ``how="max"`` shows. ``scale="log"`` shades by the logarithm of the weight, over at most six
    decades; on the linear scale, one weight in two hundred of a large matrix may exceed the end of
    the scale, which then is pointed. ``sink="hide"`` hatches the first key that any query looks at,
    and leaves it out of the scale. The side shows the entropy of each row in nats, the bottom the
    sum of each column, averaged where rows or columns share a cell. Returns the figure, written to
    ``save``.

    Raises ArgumentError for an empty matrix, an ambiguous choice of matrix, an unknown scale, sink
    or suffix, and a sink or a logarithm for numbers that have none. The sink: Xiao et al. 2024,
    "Efficient Streaming Language Models with Attention Sinks", section 3.1.

    >>> import torch
    >>> from intently.matrix import Dense
    >>> figure = heatmap(Dense(torch.ones(2000, 1000) / 1000))
    >>> figure.axes[0].images[0].get_array().shape
    (512, 512)
    """
    path = destination(save)
    check_word(scale, "scale", ("linear", "log"))
    check_word(sink, "sink", SINKS)
    lazy, chosen = one_of(matrix, head, read=reading.any_numbers)
    plain = lazy.no_weights() if isinstance(lazy, Plain) else ""
    found, notes = _numbers(lazy, how, plain) if plain else _survey(lazy, how)
    if plain:
        _check_plain(found.cells, scale, sink, plain)
    elif unknown := reading.missing(found.cells):
        notes.append(f"{unknown}, and left out of the column sums")
    labels = reading.shown_names(lazy, shown)
    if sink == "hide":
        notes += _hide_sink(found, labels.columns)
    texts = titled(title, chosen), "\n".join(notes)
    with style((*labels.rows, *labels.columns, *texts)):
        look = _look(found.cells, scale, how if max(lazy.shape) > CELLS else None, bool(plain))
        return finish(_draw(lazy, found, look, labels, texts), path)


def _check_plain(cells: np.ndarray, scale: str, sink: str, why: str) -> None:
    """Refuse options for weights if the numbers are not weights."""
    if sink == "hide":
        raise build(
            ArgumentError, "sink", "'show' for numbers that are not weights", repr(sink), why
        )
    if scale == "log" and (cells < 0).any():
        raise build(ArgumentError, "scale", "'linear' for numbers below 0", repr(scale), why)


def _numbers(lazy: LazyMatrix, how: Pooling, why: str) -> tuple[Survey, list[str]]:
    """Read numbers that are not weights, so without entropy and column sums."""
    notes = [f"numbers as they are, no attention weights: {why}"]
    if max(lazy.shape) > CELLS:
        notes.append(reading.pooled(lazy.shape, CELLS, how, "numbers"))
    cells = reading.picture(lazy, CELLS, how).copy()
    if unknown := reading.missing(cells):
        notes.append(unknown.replace("weights", "numbers"))
    return Survey(cells, np.empty(0), np.empty(0), float(np.nanmax(cells, initial=0.0))), notes


def _survey(lazy: LazyMatrix, how: Pooling) -> tuple[Survey, list[str]]:
    """Read a small matrix cell by cell, a larger one in one pass."""
    if max(lazy.shape) > CELLS:
        found = survey(lazy, CELLS, CELLS, how)
        note = reading.pooled(lazy.shape, CELLS, how)
        if how != "max":
            note += f"; the largest single weight is {found.highest:.2g}"
        return found, [note]
    with torch.no_grad():
        entropy, received = reading.numbers(lazy.entropy()), reading.numbers(lazy.received())
    cells = reading.weights(lazy).copy()
    if not np.isfinite(received).all():
        received = np.where(np.isfinite(cells), cells, 0).sum(0)
    return Survey(cells, entropy, received, float(np.nanmax(cells, initial=0.0))), []


def _hide_sink(found: Survey, columns: tuple[str, ...]) -> list[str]:
    """Leave out the cells of the first key that any query looks at, and say so."""
    looked_at = np.flatnonzero(found.received > 0)
    if not len(looked_at):
        return []
    key, s = int(looked_at[0]), len(found.received)
    share = found.received[key] / found.received.sum()
    cells = found.cells.shape[1]
    cell = key * cells // s
    first, last = (-(-edge * s // cells) for edge in (cell, cell + 1))
    keys = f"key {key}" + (f" ‘{columns[key]}’" if columns[key] != str(key) else "")
    hatched = f"keys {first} to {last - 1}; {keys}" if last - first > 1 else f"{keys}; it"
    found.cells[:, cell] = np.nan
    return [f"hatched, not in the scale: {hatched} takes {share:.0%} of all weight"]


class Look(NamedTuple):
    """The mapping from numbers to colours, and the label of the colour bar."""

    norm: Normalize
    colours: Colormap
    label: str


def _look(values: np.ndarray, scale: Scale, how: Pooling | None, plain: bool) -> Look:
    from matplotlib.colors import Normalize

    label = reading.measured(how, "number" if plain else "weight")
    if plain and (values < 0).any():
        top = float(np.abs(values[np.isfinite(values)]).max())
        return Look(Normalize(-top, top), signed_map(), label)
    return Look(_norm(values, scale), weight_map(), label)


def _norm(values: np.ndarray, scale: Scale) -> Normalize:
    from matplotlib.colors import LogNorm, Normalize

    if scale == "linear":
        return Normalize(*crowded_limits(values))
    positive = values[np.isfinite(values) & (values > 0)]
    top = float(positive.max(initial=0.0)) or 1.0
    bottom = max(float(positive.min(initial=top)), top * 10.0**-DECADES)
    return LogNorm(bottom if bottom < top else top / 10, top)


def _draw(
    matrix: LazyMatrix, found: Survey, look: Look, labels: Names, texts: tuple[str, str]
) -> Figure:
    from matplotlib.colors import LogNorm

    values, norm, sides = found.cells, look.norm, found.entropy.size > 0
    t, s = matrix.shape
    rows, columns = labels
    cell = min(0.4, 4.4 / s, 4.4 / t)
    wide, high = max(s * cell, 1.1), max(t * cell, 1.1)
    size = 8.5 if cell >= 0.2 else 7.0
    word = size * WORD
    counted = tuple(side is None for side in matrix.labels)
    top_labels = header(columns, wide / s, size, wide / word)
    above = size * LINE + 0.05 if counted[1] else top_labels.height
    left = MARGIN + 9 * LINE + 0.12 + width_of([str(t)] if counted[0] else rows, size)
    side = GAP + SIDE if sides else 0.0
    width = left + wide + side + 0.95
    heading, foot = captions(texts, width - 2 * MARGIN)
    top = MARGIN + height_of(heading, HEADING) + 9 * LINE + 0.04 + above
    below = side + 0.3 if sides else 0.15

    sheet = Sheet.of(width, top + high + below + height_of(foot, NOTES, 0.08))
    axes = sheet.axes(left, top, wide, high)
    logarithmic = isinstance(norm, LogNorm)
    shaded = np.maximum(values, (norm.vmin or 0.0) / 10) if logarithmic else values
    paint(axes, shaded, (t, s), norm, "auto", look.colours)
    if cell >= 0.12:
        rule(axes, (t, s))
    if counted[1]:
        count_steps(axes, "x", s, size)
    else:
        name_columns(axes, columns, wide / word, size, top_labels.turn)
    if counted[0]:
        count_steps(axes, "y", t, size)
    else:
        name_rows(axes, rows, high / word, size)
    named = ("rows", "columns")
    if sides:
        named = "query steps" if counted[0] else "queries", "key steps" if counted[1] else "keys"
    name_sides(axes, named, ((left - MARGIN - 9 * LINE) / wide, (above + 0.02) / high))
    if sides:
        _entropy(sheet.axes(left + wide + GAP, top, SIDE, high), found.entropy, values.shape[0])
        _received(sheet.axes(left, top + high + GAP, wide, SIDE), found.received, values)
    beyond = np.isfinite(values) & (values > (norm.vmax or 0.0))
    sheet.colour_bar(
        (left + wide + side + 0.2, top, 0.11, high),
        norm,
        look.colours,
        label=look.label,
        extend="max" if beyond.any() else "neither",
        format=None if logarithmic else "{x:.3g}",
    )
    sheet.write(MARGIN, MARGIN, heading)
    sheet.note(left, top + high + below, foot)
    return sheet.figure


def _entropy(axes: Axes, entropy: np.ndarray, cells: int) -> None:
    levels, edges = _steps(entropy, cells)
    axes.stairs(levels, edges, orientation="horizontal", fill=True, color=SIDES, lw=0)
    axes.set_xlim(0, _end(levels))
    axes.set_ylim(edges[-1], edges[0])
    axes.set_yticks([])
    axes.set_xlabel("entropy (nats)", size=7.5, loc="left")
    _quiet(axes, axes.xaxis)


def _received(axes: Axes, received: np.ndarray, values: np.ndarray) -> None:
    levels, edges = _steps(received, values.shape[1])
    axes.stairs(levels, edges, fill=True, color=SIDES, lw=0)
    shown = np.isfinite(values).any(0)
    axes.set_ylim(_end(levels[shown]), 0)
    for cell in np.flatnonzero(~shown):
        wide = edges[cell + 1] - edges[cell]
        hatched = ground((edges[cell], 0), wide, axes.get_ylim()[0], zorder=2)
        axes.add_patch(hatched)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xticks([])
    axes.set_xlabel("received attention (column sums)", size=7.5)
    _quiet(axes, axes.yaxis)


def _quiet(axes: Axes, axis: Axis) -> None:
    few_ticks(axis, 3)
    axis.set_major_formatter("{x:g}")
    axis.grid(color=GRID, lw=0.6)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(labelsize=7, length=0, pad=2)


def _steps(values: np.ndarray, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of the values in each of ``cells`` cells, and where the cells end."""
    n = len(values)
    members = np.arange(n) * cells // n
    sums = np.bincount(members, np.where(np.isfinite(values), values, 0))
    edges = np.searchsorted(members, np.arange(cells + 1)) - 0.5
    return sums / np.bincount(members), edges


def _end(levels: np.ndarray) -> float:
    return float(levels.max(initial=0.0)) * 1.08 or 1.0
