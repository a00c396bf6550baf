"""Two columns of words, joined by lines whose width is the weight."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from intently.core.matrix.labelling import follows
from intently.errors import ArgumentError, build
from intently.show.cells import limits
from intently.show.inputs import Choice, Source, one_of, place
from intently.show.labels import shown, titled
from intently.show.layout import LINE, Layout, destination
from intently.show.reading import AxisNames, at_most, missing, names, outside, shown_names, weights
from intently.show.style import ACCENT, FRAME, INK, LINES, QUIET, style, weight_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from intently.core.matrix import LazyMatrix

LARGEST = 64
STEP = 0.235
BETWEEN = 2.5
WIDEST = 7.0
"""Width of the line of the largest weight on the scale, in points."""
FAINTEST = 0.01
"""Share of the scale under which no line is drawn: it would be thinner than any printer's."""
SIZE = 9.5
APART = 0.045
"""Between the lines of two heads at one word, in inches."""


def lines(
    matrix: Source,
    token: int | str | None = None,
    *,
    head: Choice | list[Choice] = None,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Join queries on the left and keys on the right by lines whose width is the weight.

    The width is proportional to the weight; lines under a hundredth of the scale are left out,
    which the picture says.
    ``token``, a query by its position or by a text that occurs once, highlights its lines; all
    other lines become grey. Of (h, t, s) ``head`` chooses one, else their mean is drawn; of a
    recording it is ``"name"`` or ``("name", head)``. A list of two or three such choices draws each
    in a colour of its own, on one scale. Returns the figure, written to ``save``.

    Raises ArgumentError for more than 64 words on a side, a token that is missing or occurs twice,
    more than three heads, heads over different words.
    The picture is that of Vaswani et al. 2017, "Attention Is All You Need", figures 3 to 5.

    >>> import torch
    >>> from intently.core.matrix import Dense
    >>> figure = lines(Dense(torch.eye(2), labels=(("Je", "bois"), ("I", "drink"))))
    >>> len(figure.axes[0].collections[0].get_segments())
    2
    """
    path = destination(save)
    heads = head if isinstance(head, list) else [head]
    picked = [one_of(matrix, x) for n, x in enumerate(heads) if x not in heads[:n]]
    _check_heads([A for A, _ in picked])
    lazy = picked[0][0]
    cause = "lines between more cannot be told apart"
    fix = "draw a part, or all with intently.show.heatmap"
    at_most(lazy, LARGEST, f"{LARGEST} words on each side", cause, fix)
    at = None if token is None else place(token, names(lazy).rows)
    values = np.stack([weights(A) for A, _ in picked])
    labels = shown_names(lazy, shown)
    translates = None not in lazy.labels and follows(lazy) is None
    sides = ("produced", "source") if translates else ("queries", "keys")
    foot = (
        missing(values).replace("hatched", "no line"),
        outside(np.concatenate(values), labels.rows * len(values)),
        _left_out(values),
    )
    chosen = [name for _, name in picked]
    heading = titled(title, *(chosen if len(picked) == 1 else ()))
    with style((*labels.rows, *labels.columns, heading, *chosen)):
        layout = _draw(values, labels, sides, at, chosen if len(picked) > 1 else [])
        return layout.finish(heading, "\n".join(filter(None, foot)), path)


def _check_heads(heads: list[LazyMatrix]) -> None:
    expected = f"one to {len(LINES)} heads over the same words"
    if not 1 <= len(heads) <= len(LINES):
        raise build(ArgumentError, "head", expected, f"{len(heads)} heads")
    for A in heads:
        if (A.shape, A.labels) != (heads[0].shape, heads[0].labels):
            raise build(ArgumentError, "head", expected, "heads of different words or sizes")


def _draw(
    values: np.ndarray, labels: AxisNames, sides: tuple[str, str], at: int | None, heads: list[str]
) -> Layout:
    """Draw the lines of (n, t, s), the weights of n heads; several heads are named by colour."""
    t, s = values.shape[1:]
    high = max(t, s) * STEP
    layout = Layout(down=0.12)
    axes = layout.blank(0, 0, BETWEEN, high)
    top = limits(values)[1]
    heights = _heights(t, high), _heights(s, high)
    for n, one in enumerate(values):
        shift = APART * (n - (len(values) - 1) / 2)
        moved = heights[0] + shift, heights[1] + shift
        _join(axes, one, moved, top, at, LINES[n] if heads else None)
    inks = [INK if at is None else QUIET] * t
    if at is not None:
        inks[at] = INK if heads else ACCENT
    _name(axes, (-0.07, "right"), sides[0], labels.rows, heights[0], inks)
    _name(axes, (BETWEEN + 0.07, "left"), sides[1], labels.columns, heights[1], [INK] * s)
    _legend(layout.blank(1, 0, BETWEEN, 0.14), top, QUIET if heads else None)
    if heads:
        named = layout.blank(2, 0, BETWEEN, 9 * LINE * len(heads))
        for n, name in enumerate(heads):
            named.text(0, 9 * LINE * n, name, size=9, color=LINES[n], va="top", parse_math=False)
    return layout


def _left_out(values: np.ndarray) -> str:
    """Say how many weights are too small for a line."""
    least = FAINTEST * limits(values)[1]
    count = np.count_nonzero((values > 0) & (values <= least))
    return f"no line: {count:,} weights up to {least:.2g}" if count else ""


def _heights(count: int, high: float) -> np.ndarray:
    """The positions of the words of a side: evenly spaced, the shorter side centred."""
    return (high - count * STEP) / 2 + STEP * (np.arange(count) + 0.5)


def _join(
    axes: Axes,
    values: np.ndarray,
    heights: tuple[np.ndarray, np.ndarray],
    top: float,
    at: int | None,
    colour: str | None,
) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    share = np.nan_to_num(values / top, nan=0.0, posinf=0.0)
    i, j = np.nonzero(share > FAINTEST)
    order = np.argsort(share[i, j] + 2 * (i == at), kind="stable")
    i, j = i[order], j[order]
    wide = share[i, j]
    colours = weight_map()(0.3 + 0.6 * np.clip(wide, 0, 1))
    if colour is not None:
        colours[:] = to_rgba(colour, 0.85)
    if at is not None:
        colours[i != at] = to_rgba(FRAME, 0.35)
    ends = [((0, y), (BETWEEN, y2)) for y, y2 in zip(heights[0][i], heights[1][j], strict=True)]
    look: dict[str, Any] = {"capstyle": "butt", "clip_on": False, "in_layout": False}
    axes.add_collection(LineCollection(ends, linewidths=WIDEST * wide, colors=colours, **look))


def _name(
    axes: Axes,
    place: tuple[float, str],
    side: str,
    labels: Sequence[str],
    heights: np.ndarray,
    inks: Sequence[str],
) -> None:
    """Write the words of a side and their title, at an x and aligned there."""
    x, align = place
    look: dict[str, Any] = {"ha": align, "parse_math": False}
    for label, y, ink in zip(labels, heights, inks, strict=True):
        axes.text(x, y, label, size=SIZE, color=ink, va="center_baseline", **look)
    axes.text(x, -0.05, side, size=9, color=QUIET, va="bottom", **look)


def _legend(axes: Axes, top: float, colour: str | None) -> None:
    axes.text(0, 0.07, "weight", size=8, color=INK, va="center")
    for n, share in enumerate((0.1, 0.5, 1.0)):
        start = 0.52 + n * 0.68
        axes.plot(
            [start, start + 0.26],
            [0.07, 0.07],
            lw=WIDEST * share,
            color=colour or weight_map()(0.3 + 0.6 * share),
            solid_capstyle="butt",
        )
        axes.text(start + 0.31, 0.07, f"{share * top:.2g}", size=8, color=INK, va="center")
