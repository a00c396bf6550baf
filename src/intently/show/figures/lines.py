"""Two columns of words, joined by lines as wide as the weight between them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from intently.errors import ArgumentError, build, shape_of
from intently.matrix.labelling import follows
from intently.show.cells import limits
from intently.show.choosing import Choice, Source, one_of, place
from intently.show.files import destination, finish
from intently.show.labels import shown, titled
from intently.show.reading import missing, names, outside, shown_names, weights
from intently.show.sheet import LINE, Sheet, height_of, width_of, wrapped
from intently.show.style import ACCENT, FRAME, INK, QUIET, style, weight_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST = 64
MARGIN = 0.14
STEP = 0.235
BETWEEN = 2.5
WIDEST = 7.0
"""Width of the line of the largest weight on the scale, in points."""
FAINTEST = 0.01
"""Share of the scale under which no line is drawn: it would be thinner than any printer's."""
SIZE = 9.5


def lines(
    matrix: Source,
    token: int | str | None = None,
    *,
    head: Choice = None,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Join queries on the left and keys on the right by lines as wide as the weight.

    The width is proportional to the weight; lines under a hundredth of the scale are left out.
    ``token``, a query by its position or by its text where that occurs once, brings out its own
    lines; the others stand back. Of (h, t, s) ``head`` chooses one, else their mean is drawn; of a
    recording it is ``"name"`` or ``("name", head)``. Returns the figure, written to ``save``.

    Raises ArgumentError for more than 64 words on a side, a token that is not there or there
    twice. The picture is that of Vaswani et al. 2017, "Attention Is All You Need", figures 3 to 5.

    >>> import torch
    >>> from intently.matrix import Dense
    >>> figure = lines(Dense(torch.eye(2), labels=(("Je", "bois"), ("I", "drink"))))
    >>> len(figure.axes[0].collections[0].get_segments())
    2
    """
    path = destination(save)
    lazy, chosen = one_of(matrix, head)
    if max(lazy.shape) > LARGEST:
        expected = f"at most {LARGEST} words on each side"
        cause = "lines between more cannot be told apart"
        fix = "draw a part, or all with intently.show.heatmap"
        raise build(ArgumentError, "matrix", expected, shape_of(lazy), cause, fix)
    at = None if token is None else place(token, names(lazy).rows)
    values = weights(lazy)
    rows, columns = shown_names(lazy, shown)
    sides = ("queries", "keys")
    if lazy.labels[0] is not None and lazy.labels[1] is not None and follows(lazy) is None:
        sides = ("produced", "source")
    heading = titled(title, chosen)
    with style((*rows, *columns, heading)):
        foot = missing(values).replace("hatched", "no line"), outside(values, rows)
        texts = heading, "\n".join(filter(None, foot))
        return finish(_draw(values, (rows, columns), sides, at, texts), path)


def _draw(
    values: np.ndarray,
    labels: tuple[tuple[str, ...], tuple[str, ...]],
    sides: tuple[str, str],
    at: int | None,
    texts: tuple[str, str],
) -> Figure:
    t, s = values.shape
    rows, columns = labels
    left = MARGIN + max(width_of(rows, SIZE), width_of(sides[:1], 9)) + 0.12
    right = 0.12 + max(width_of(columns, SIZE), width_of(sides[1:], 9)) + MARGIN
    width = left + BETWEEN + right
    heading = wrapped(texts[0], width - 2 * MARGIN, 10.5)
    foot = wrapped(texts[1], width - 2 * MARGIN, 7.5)
    above = MARGIN + height_of(heading, 10.5) + (0.06 if heading else 0) + 9 * LINE + 0.03
    high = max(t, s) * STEP
    below = 0.36
    height = above + high + below + height_of(foot, 7.5, 0.04)

    sheet = Sheet.of(width, height)
    axes = sheet.axes(left, above, BETWEEN, high)
    axes.set(xlim=(0, BETWEEN), ylim=(high, 0))
    axes.set_axis_off()
    top = limits(values)[1]
    heights = _heights(t, high), _heights(s, high)
    _join(axes, values, heights, top, at)
    for n, (label, y) in enumerate(zip(rows, heights[0])):
        strong = at is None or n == at
        _name(axes, -0.07, y, label, "right", ACCENT if n == at else INK if strong else QUIET)
    for label, y in zip(columns, heights[1]):
        _name(axes, BETWEEN + 0.07, y, label, "left", INK)
    for x, side, align in ((-0.07, sides[0], "right"), (BETWEEN + 0.07, sides[1], "left")):
        axes.text(x, -0.05, side, size=9, color=QUIET, ha=align, va="bottom")
    _legend(sheet, (left, above + high + 0.16), top)
    sheet.write(MARGIN, MARGIN, heading, size=10.5)
    sheet.write(MARGIN, above + high + below - 0.02, foot, size=7.5, color=QUIET)
    return sheet.figure


def _heights(count: int, high: float) -> np.ndarray:
    """Where the words of a side stand: evenly, the shorter side in the middle."""
    return (high - count * STEP) / 2 + STEP * (np.arange(count) + 0.5)


def _join(
    axes: Axes,
    values: np.ndarray,
    heights: tuple[np.ndarray, np.ndarray],
    top: float,
    at: int | None,
) -> None:
    from matplotlib.collections import LineCollection

    share = np.nan_to_num(values / top, nan=0.0, posinf=0.0)
    i, j = np.nonzero(share > FAINTEST)
    order = np.argsort(share[i, j] + 2 * (i == at), kind="stable")
    i, j = i[order], j[order]
    wide = share[i, j]
    colours = weight_map()(0.3 + 0.6 * np.clip(wide, 0, 1))
    if at is not None:
        colours[i != at] = (*(int(FRAME[n : n + 2], 16) / 255 for n in (1, 3, 5)), 0.35)
    ends = np.stack(
        [
            np.stack([np.zeros(len(i)), heights[0][i]], -1),
            np.stack([np.full(len(j), BETWEEN), heights[1][j]], -1),
        ],
        1,
    )
    drawn = LineCollection(
        list(ends), linewidths=WIDEST * wide, colors=colours, capstyle="butt", clip_on=False
    )
    axes.add_collection(drawn)


def _name(axes: Axes, x: float, y: float, label: str, align: str, colour: str) -> None:
    axes.text(
        x, y, label, size=SIZE, color=colour, ha=align, va="center_baseline", parse_math=False
    )


def _legend(sheet: Sheet, corner: tuple[float, float], top: float) -> None:
    left, down = corner
    axes = sheet.axes(left, down, BETWEEN, 0.14)
    axes.set(xlim=(0, BETWEEN), ylim=(0.14, 0))
    axes.set_axis_off()
    axes.text(0, 0.07, "weight", size=8, color=INK, va="center")
    for n, share in enumerate((0.1, 0.5, 1.0)):
        start = 0.52 + n * 0.68
        axes.plot(
            [start, start + 0.26],
            [0.07, 0.07],
            lw=WIDEST * share,
            color=weight_map()(0.3 + 0.6 * share),
            solid_capstyle="butt",
        )
        axes.text(start + 0.31, 0.07, f"{share * top:.2g}", size=8, color=INK, va="center")
