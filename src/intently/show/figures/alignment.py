"""One sentence and its translation: the source words that each produced word looked at."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

import numpy as np

from intently.errors import ArgumentError, build
from intently.matrix.labelling import follows
from intently.show.cells import header, limits, name_columns, name_rows, name_sides, paint, rule
from intently.show.choosing import Choice, Source, one_of
from intently.show.files import destination, finish
from intently.show.labels import shown, titled
from intently.show.reading import Names, at_most, missing, outside, shown_names, weights
from intently.show.sheet import HEADING, LINE, NOTES, WORD, Sheet, captions, height_of, width_of
from intently.show.style import ACCENT, QUIET, ink_on, style, weight_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

LARGEST = 1024
MARGIN = 0.12


class Gold(Protocol):
    """Known links between words, as (source, target): `intently.corpora.Alignment` is one."""

    @property
    def sure(self) -> Collection[tuple[int, int]]: ...
    @property
    def possible(self) -> Collection[tuple[int, int]]: ...


def alignment(
    matrix: Source,
    *,
    head: Choice = None,
    gold: Gold | None = None,
    beside: str = "produced",
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw the weights of one sentence: source words above, produced words on the left.

    If both sides have the same words, as in self-attention, they are labelled keys and queries;
    otherwise, ``beside`` names the side on the left: "reference" for forced decoding.

    ``matrix`` has shape (t, s); for (h, t, s), ``head`` chooses a head, otherwise the mean is drawn
    and the title says so; of a recording it is ``"name"`` or ``("name", head)``. Links of ``gold``
    are outlined, sure ones solid, possible ones dashed. White is 0, the darkest blue 1, or 0.5,
    0.2, 0.1, … if no weight is larger; up to 12 × 12 cells show their value. Returns the figure,
    written to ``save`` if given.

    Raises ArgumentError for an empty matrix, more than 1,024 rows or columns, links outside the
    matrix and an unknown suffix. The picture is that of Bahdanau, Cho & Bengio 2015, "Neural
    Machine Translation by Jointly Learning to Align and Translate", figure 3.

    >>> import torch
    >>> from intently.matrix import Dense
    >>> words = (("Je", "bois"), ("I", "drink"))
    >>> figure = alignment(Dense(torch.eye(2), labels=words), title="two words")
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['Je', 'bois']
    """
    path = destination(save)
    lazy, chosen = one_of(matrix, head)
    expected, cause = f"{LARGEST} rows and columns", "an alignment shows every word"
    at_most(lazy, LARGEST, expected, cause, "draw it with intently.show.heatmap, which pools")
    values = weights(lazy)
    links = _links(gold, *lazy.shape)
    labels = shown_names(lazy, shown)
    sides = ("queries", "keys") if follows(lazy) is not None else (beside, "source")
    legend = "outlined: gold links (solid sure, dashed possible)" if gold is not None else ""
    foot = "\n".join(filter(None, (legend, outside(values, labels.rows), missing(values))))
    texts = titled(title, chosen), foot
    with style((*labels.rows, *labels.columns, *texts, *sides)):
        return finish(_draw(values, labels, sides, links, texts), path)


def _links(
    gold: Gold | None, t: int, s: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    if gold is None:
        return [], []
    sure = {(int(j), int(i)) for j, i in gold.sure}
    possible = {(int(j), int(i)) for j, i in gold.possible}
    outside = sorted((j, i) for j, i in sure | possible if not (0 <= j < s and 0 <= i < t))
    if outside:
        raise build(
            ArgumentError,
            "gold",
            f"links (source, target) inside a (t, s) matrix of shape ({t}, {s})",
            f"the link {outside[0]}",
            "the links count words, the matrix may count subwords, or the sides were exchanged",
            "merge the matrix to words first: intently.matrix.Merged",
        )
    return sorted(sure), sorted(possible - sure)


def _draw(
    values: np.ndarray,
    labels: Names,
    sides: tuple[str, str],
    links: tuple[list[tuple[int, int]], list[tuple[int, int]]],
    texts: tuple[str, str],
) -> Figure:
    from matplotlib.colors import Normalize

    rows, columns = labels
    t, s = values.shape
    cell = min(0.5, 5.0 / s, 5.0 / t)
    size = 9.0 if cell >= 0.2 else 7.0
    room = cell / (size * WORD)
    wide, high = max(s * cell, 0.3), max(t * cell, 0.3)
    top_labels = header(columns, cell, size, s * room)
    left = MARGIN + size * LINE + 0.06 + width_of(rows, size) + 0.06
    right = max(0.85, top_labels.overhang + 0.05)
    width = max(left + wide + right, 2.6)

    heading, foot = captions(texts, width - 2 * MARGIN)
    top = MARGIN + height_of(heading, HEADING) + 9 * LINE + 0.04 + top_labels.height
    below = MARGIN + max(0.0, 0.35 - high / 2)
    height = top + high + below + height_of(foot, NOTES, 0.06)

    sheet = Sheet.of(width, height)
    axes = sheet.axes(left, top, wide, high)
    norm = Normalize(*limits(values))
    paint(axes, values, (t, s), norm)
    if cell >= 0.12:
        rule(axes, (t, s))
    name_columns(axes, columns, s * room, size, top_labels.turn)
    name_rows(axes, rows, t * room, size)
    apart = left - MARGIN - size * LINE, top_labels.height + 0.02
    name_sides(axes, sides, (apart[0] / wide, apart[1] / high))
    if max(t, s) <= 12:
        _print_values(axes, values, min(8.0, cell * 72 * 0.24), norm)
    _outline(axes, *links)
    sheet.colour_bar((left + wide + 0.12, top, 0.11, high), norm, label="weight")
    sheet.write(MARGIN, MARGIN, heading)
    sheet.note(MARGIN, top + high + below - 0.02, foot)
    return sheet.figure


def _print_values(axes: Axes, values: np.ndarray, size: float, norm: Normalize) -> None:
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            faint = abs(value) < 0.005
            axes.text(
                j,
                i,
                "0" if faint else f"{value:.2f}",
                size=size,
                color=QUIET if faint else ink_on(weight_map()(norm(float(value)))),
                ha="center",
                va="center_baseline",
                parse_math=False,
                zorder=3,
            )


def _outline(axes: Axes, sure: list[tuple[int, int]], possible: list[tuple[int, int]]) -> None:
    from matplotlib.patches import Rectangle

    for links, dash, name in ((possible, (0, (3, 2)), "possible"), (sure, "solid", "sure")):
        for source, target in links:
            box = Rectangle(
                (source - 0.45, target - 0.45),
                0.9,
                0.9,
                fill=False,
                edgecolor=ACCENT,
                linestyle=dash,
                linewidth=1.6,
                label=name,
                zorder=2.5,
            )
            axes.add_patch(box)
