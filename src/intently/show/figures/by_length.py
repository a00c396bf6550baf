"""Translation quality by sentence length: a line for each model."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from intently.errors import ArgumentError, build
from intently.show.files import destination, finish
from intently.show.labels import titled, visible
from intently.show.sheet import (
    End,
    Sheet,
    few_ticks,
    heading_of,
    name_ends,
    name_panel,
    open_axes,
    width_of,
)
from intently.show.style import FRAME, HOLE, LINES, QUIET, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Interval = tuple[float, float, float]
"""A number, and the lower and the upper end of its interval."""

MARGIN = 0.12
LEFT, WIDE, HIGH, BETWEEN = 0.55, 3.1, 2.1, 0.55
ABOVE, BELOW = 0.3, 0.62
MARKS = ("o", "s", "^")
"""One for each line, so that lines differ without colours too."""


def by_length(
    scores: Mapping[str, Mapping[str, Sequence[Interval]]],
    buckets: Mapping[str, int],
    *,
    unseen: int = 0,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw scores against the length of sentences: a panel for each score, a line for each model.

    ``scores[panel][model]`` holds a number with the ends of its interval, drawn as a band, for each
    bucket of lengths; ``buckets`` maps the names of the buckets, in order, to their numbers of
    sentences. The last ``unseen`` buckets are shaded: longer than all training sentences. The axis
    of a panel whose values are at most 1 reaches 1. Returns the figure, written to ``save``.

    Source: Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and
    Translate", figure 2. Raises ArgumentError for no panel, no or more than three models, lines
    whose length is not the number of buckets, numbers below 0 or not finite, ends of an interval in
    the wrong order, an unknown suffix.

    >>> scores = {"BLEU": {"fixed": [(90, 85, 95), (20, 15, 25)], "attention": [(92, 88, 96)] * 2}}
    >>> [axes] = by_length(scores, {"1–10": 200, "11–20": 150}).axes
    >>> [label.get_text() for label in axes.get_xticklabels()]
    ['1–10\\n200', '11–20\\n150']
    """
    path = destination(save)
    _check(scores, buckets, unseen)
    heading = titled(title)
    models = [visible(model) for model in next(iter(scores.values()))]
    size = 8 if len(buckets) <= 6 else 7
    labels = [(visible(name), f"{count:,}") for name, count in buckets.items()]
    with style((heading, *models, *scores, *buckets)):
        wide = max(WIDE, len(buckets) * (0.06 + width_of(chain(*labels), size)))
        right = 0.2 + width_of(models, 8)
        width = LEFT + len(scores) * wide + (len(scores) - 1) * BETWEEN + right
        heading, tall = heading_of(heading, width - 2 * MARGIN)
        top = MARGIN + tall + ABOVE
        sheet = Sheet.of(width, top + HIGH + BELOW)
        for column, (panel, lines) in enumerate(scores.items()):
            axes = sheet.axes(LEFT + column * (wide + BETWEEN), top, wide, HIGH)
            _plot(axes, lines)
            name_panel(axes, visible(panel), HIGH)
            axes.set_xticks(
                range(len(labels)),
                ["\n".join(label) for label in labels],
                parse_math=False,
                size=size,
                linespacing=1.35,
            )
            _shade(axes, len(buckets), unseen)
            if column == len(scores) - 1:
                last = [line[-1][0] for line in lines.values()]
                ends = [End(1, *end) for end in zip(last, models, LINES, strict=False)]
                name_ends(axes, ends, axes.get_yaxis_transform())
        sheet.write(MARGIN, MARGIN, heading)
        return finish(sheet.figure, path)


def _check(
    scores: Mapping[str, Mapping[str, Sequence[Interval]]], buckets: Mapping[str, int], unseen: int
) -> None:
    if not scores:
        raise build(ArgumentError, "scores", "at least one panel", "none")
    if not buckets:
        raise build(ArgumentError, "buckets", "at least one bucket of lengths", "none")
    if not 0 <= unseen <= len(buckets):
        raise build(ArgumentError, "unseen", f"0 to {len(buckets)}, the buckets", unseen)
    first = list(next(iter(scores.values())))
    for panel, lines in scores.items():
        name = f"scores[{panel!r}]"
        if not 1 <= len(lines) <= len(LINES):
            expected = f"one to {len(LINES)} models"
            raise build(ArgumentError, name, expected, len(lines), fix="draw two figures")
        if list(lines) != first:
            raise build(ArgumentError, name, f"the models {', '.join(first)}", ", ".join(lines))
        for model, line in lines.items():
            where = f"{name}[{model!r}]"
            if len(line) != len(buckets):
                expected = f"a number for each of {len(buckets)} buckets"
                raise build(ArgumentError, where, expected, len(line))
            for point in line:
                if not is_interval(point):
                    expected = "finite numbers, each with the two ends of its interval, all ≥ 0"
                    raise build(ArgumentError, where, expected, repr(point))


def is_interval(number: Any) -> bool:
    """Say whether it is a finite number ≥ 0 with the two ends of its interval, in their order.

    >>> is_interval((90, 85, 95)), is_interval((90, 95, 85)), is_interval(90)
    (True, False, False)
    """
    try:
        value, low, high = number
        return bool(0 <= value < math.inf and 0 <= low <= high < math.inf)
    except (TypeError, ValueError):
        return False


def _plot(axes: Axes, lines: Mapping[str, Sequence[Interval]]) -> None:
    buckets = len(next(iter(lines.values())))
    at = range(buckets)
    for line, colour, mark in zip(lines.values(), LINES, MARKS, strict=False):
        middle, low, high = zip(*line, strict=True)
        if buckets > 1:
            axes.fill_between(at, low, high, color=colour, alpha=0.15, lw=0)
        else:  # a band has no width here
            axes.vlines(at, low, high, color=colour, lw=1.2)
        axes.plot(at, middle, color=colour, lw=1.6, marker=mark, ms=4, clip_on=False)
    highest = max(max(point) for line in lines.values() for point in line)
    axes.set_ylim(0, 1.04 if highest <= 1 else highest * 1.06)
    axes.set_xlim(-0.35, buckets - 0.65)
    few_ticks(axes.yaxis, 5)
    axes.set_xlabel("words of the source; below, how many sentences", color=QUIET, size=8)
    open_axes(axes, "y")


def _shade(axes: Axes, buckets: int, unseen: int) -> None:
    """Shade the buckets without training sentences, and say so."""
    if not unseen:
        return
    start = max(buckets - unseen - 0.5, -0.35)
    axes.axvspan(start, buckets - 0.65, color=HOLE, lw=0, zorder=0)
    axes.axvline(start, color=FRAME, lw=0.7, zorder=0.5)
    axes.text(
        buckets - 0.68,
        1.02,
        "longer than in training",
        transform=axes.get_xaxis_transform(),
        ha="right",
        va="bottom",
        size=7.5,
        color=QUIET,
    )
