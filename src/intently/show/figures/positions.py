"""Positions as pictures: the added waves, or the angles of rotary positions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from intently.core.positions import Learned, Rotary
from intently.errors import ArgumentError, RangeError, build, shape_of
from intently.foundation.arrays import Numbers
from intently.foundation.checks import whole_number
from intently.show.cells import highest, paint
from intently.show.inputs import one_item
from intently.show.labels import titled
from intently.show.layout import NOTES, Layout, destination, open_axes
from intently.show.reading import numbers
from intently.show.style import FRAME, INK, QUIET, WEIGHTS, signed_map, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

STEPS = 64
MOST = 6
WIDTH, HEIGHTS = 5.0, (2.0, 1.25, 1.25)
"""The width of the panels, and the heights of the matrix and of the curves, in inches."""
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (9, 2)), (0, (3, 3)))
"""Curves differ in dash as well as in shade, so that no one has to tell shades apart."""

BY_POSITION, BY_DIMENSION = (16, 6, 2, 0), (6, 3, 1, 0)
"""How often, about, the curves turn that are chosen; those that turn more often cannot be read."""


class Waves(NamedTuple):
    """Numbers (t, c), their title, and the name of a column."""

    values: np.ndarray
    name: str
    column: str

    @property
    def paired(self) -> bool:
        """Whether dimensions 2i and 2i + 1 are a sine and a cosine: a constant sum of squares."""
        t, c = self.values.shape
        if t < 2 or c % 2 or not np.isfinite(self.values).all():
            return False
        radius = np.hypot(self.values[:, ::2], self.values[:, 1::2])
        moving = np.ptp(self.values, axis=0).any()
        return bool(moving and (np.ptp(radius, axis=0) <= 1e-2 * radius.mean(0)).all())

    @property
    def order(self) -> np.ndarray:
        """The columns in drawing order: for pairs, first the even ones, then the odd ones."""
        c = self.values.shape[1]
        return np.r_[0:c:2, 1:c:2] if self.paired else np.arange(c)


def positions(
    encoding: Numbers | Learned | Rotary,
    t: int | None = None,
    *,
    dimensions: Sequence[int] | None = None,
    at: Sequence[int] | None = None,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw an encoding: the whole matrix, chosen dimensions by position, positions by dimension.

    ``encoding`` is (t, c), a tensor, an array or nested lists, such as `intently.sinusoidal`
    returns, a table that is learned, or `intently.Rotary`, of which the cosine of each pair's angle
    is drawn. ``t`` counts the positions (all that are known, 64 of `Rotary`). Where dimensions 2i
    and 2i + 1 are a sine and a cosine, even dimensions are drawn before odd ones. ``dimensions``
    and ``at`` choose at most six curves each; by default, a few with a frequency low enough to be
    legible. Returns the figure, written to ``save``.

    Raises ArgumentError for another shape or too many curves, RangeError for dimensions and
    positions outside. The picture is the usual illustration of Vaswani et al. 2017, section 3.5.

    >>> import intently as it
    >>> figure = positions(it.sinusoidal(50, 16), dimensions=[4, 5], at=[0, 10, 20])
    >>> [len(axes.lines) for axes in figure.axes[:3]]
    [0, 2, 3]
    """
    path = destination(save)
    waves = _waves(encoding, t)
    n, c = waves.values.shape
    step = 2 if waves.paired else 1
    even = waves.values[:, ::step]
    columns = _chosen(dimensions, c, "dimensions", step * _readable(even.T, BY_POSITION))
    rows = _chosen(at, n, "at", _readable(even, BY_DIMENSION))
    heading = titled(title or waves.name)
    with style((heading,)):
        return _draw(waves, columns, rows).finish(heading, "", path)


def _waves(encoding: Numbers | Learned | Rotary, t: int | None) -> Waves:
    if t is not None:
        whole_number(t, "t", 1)
    with torch.no_grad():
        if isinstance(encoding, Rotary):
            angles = numbers(encoding.angles(t or STEPS, dtype=torch.float64).cos())
            return Waves(angles, "Rotary positions: the cosine of each pair's angle", "pair")
        if isinstance(encoding, Learned):
            values = numbers(encoding(t or encoding.table.shape[0]))
            return Waves(values, repr(encoding), "dimension")
    values = numbers(one_item(encoding, "encoding", 2))
    if values.ndim != 2 or 0 in values.shape or (t or 1) > len(values):
        expected = "shape (t, c)" if t is None else f"shape (t, c) with t ≥ {t}"
        raise build(ArgumentError, "encoding", expected, shape_of(values))
    return Waves(values[:t], "Positions", "dimension")


def _readable(curves: np.ndarray, wanted: Sequence[int]) -> np.ndarray:
    """Return which of many curves (n, points) to draw: some of low frequency, else any two."""
    rising = np.sign(np.diff(curves, axis=1))
    turns = (rising[:, 1:] * rising[:, :-1] < 0).sum(1)
    calm = np.flatnonzero(turns <= wanted[0])
    if not len(calm):
        return np.unique([0, len(curves) // 2])
    return np.unique([calm[np.abs(turns[calm] - n).argmin()] for n in wanted])


def _chosen(given: Sequence[int] | None, count: int, name: str, readable: np.ndarray) -> list[int]:
    if given is None:
        return readable.tolist()
    chosen = list(map(int, [given] if isinstance(given, int) else given))
    if not 1 <= len(chosen) <= MOST:
        raise build(ArgumentError, name, f"1 to {MOST} curves", f"{len(chosen)}")
    outside = [n for n in chosen if not 0 <= n < count]
    if outside:
        raise build(RangeError, name, f"numbers from 0 to {count - 1}", outside[0])
    return chosen


def _draw(waves: Waves, columns: list[int], rows: list[int]) -> Layout:
    from matplotlib.colors import Normalize

    t, c = waves.values.shape
    layout = Layout(down=0.13)
    above, by_position, by_column = (layout.panel(n, 0, WIDTH, x) for n, x in enumerate(HEIGHTS))
    top = highest(np.abs(waves.values)) or 1.0
    image = paint(above, waves.values[:, waves.order].T, (c, t), Normalize(-top, top), signed_map())
    image.set(interpolation="antialiased", interpolation_stage="data")
    beside = above.inset_axes((1.03, 0, 0.022, 1))
    bar: Any = layout.figure.colorbar(image, cax=beside, format="{x:.3g}")
    bar.outline.set(edgecolor=FRAME, linewidth=0.5)
    bar.ax.tick_params(labelsize=NOTES)
    _curves(by_position, waves.values[:, columns].T, columns, waves.column)
    by_position.set_xlim(-0.5, t - 0.5)
    curves, places, apart = waves.values[rows][:, waves.order], np.arange(c, dtype=float), ("", "")
    if waves.paired:
        apart = ", sines (even) above cosines (odd)", ": sines (even), then cosines (odd)"
        for axis in (above.yaxis, by_column.xaxis):
            _number(axis, c)
        above.hlines(c / 2 - 0.5, -0.5, t - 0.5, colors=INK, lw=0.7)
        whole = by_column.get_xaxis_transform()
        by_column.vlines(c / 2 - 0.5, 0, 1, colors=FRAME, lw=0.7, transform=whole)
        curves, places = (np.insert(x, c // 2, np.nan, axis=-1) for x in (curves, places))  # a gap
    _curves(by_column, curves, rows, "position", places)
    by_column.set_xlim(-0.5, c - 0.5)
    said = f"all of it: {t} positions × {c} {waves.column}s{apart[0]}"
    _name(above, said, "position", waves.column)
    _name(by_position, f"chosen {waves.column}s, by position", "position")
    _name(by_column, f"chosen positions, by {waves.column}{apart[1]}", waves.column)
    return layout


def _name(axes: Axes, text: str, across: str, down: str = "") -> None:
    """Write a title above axes, and name their sides."""
    axes.set_title(text, loc="left", size=9, color=QUIET, pad=5)
    axes.set_xlabel(across, fontsize=8.5)
    axes.set_ylabel(down, fontsize=8.5)
    axes.tick_params(length=0, pad=4)


def _number(axis: Axis, c: int) -> None:
    """Number the even dimensions on the first half of an axis, the odd ones on the second."""
    from matplotlib.ticker import MaxNLocator

    locator = MaxNLocator(nbins=4, integer=True, steps=[1, 2, 5, 10])
    half = [int(n) for n in locator.tick_values(0, c // 2 - 1) if 0 <= n < 0.9 * c / 2]
    axis.set_ticks(
        [*half, *(n + c // 2 for n in half)], [str(2 * n + odd) for odd in (0, 1) for n in half]
    )


def _curves(
    axes: Axes, curves: np.ndarray, names: Sequence[int], of: str, places: np.ndarray | None = None
) -> None:
    shades = [*(WEIGHTS[n] for n in (7, 5)), QUIET, *(WEIGHTS[n] for n in (6, 5, 7))]
    places = np.arange(curves.shape[1]) if places is None else places
    for values, name, shade, dash in zip(curves, names, shades, DASHES):
        axes.plot(places, values, color=shade, lw=1.5, linestyle=dash, label=str(name))
    open_axes(axes)
    axes.legend(
        title=of,
        title_fontsize=7.5,
        fontsize=7.5,
        frameon=False,
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        handlelength=2.4,
        borderaxespad=0,
    )
