"""The loss of language models by tokens of context: a line for each window."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from intently.errors import ArgumentError, build
from intently.show.figures.by_length import ABOVE, LEFT, MARGIN, MARKS, Interval, is_interval
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
from intently.show.style import LINES, QUIET, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, HIGH, BELOW = 4.2, 2.4, 0.48


def by_context(
    losses: Mapping[str, Sequence[Interval]],
    contexts: Sequence[str],
    *,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw the loss against the tokens of context: a line for each model.

    ``losses[model]`` holds a loss in nats per token with the ends of its interval, drawn as a band,
    for the first of the ``contexts``, the names of ranges of tokens. A line that ends early is that
    of a smaller window: dots continue it at its last loss, which more context cannot change.
    Returns the figure, written to ``save``.

    Raises ArgumentError for no or more than three models, for a line without a number or with more
    numbers than contexts, for numbers below 0 or not finite, for ends of an interval in the wrong
    order, for an unknown suffix.

    >>> losses = {"2 tokens": [(3, 3, 3), (2, 2, 2)], "4": [(3, 3, 3), (2, 2, 2), (1, 1, 1)]}
    >>> [axes] = by_context(losses, ["1", "2", "3–4"]).axes
    >>> [label.get_text() for label in axes.get_xticklabels()]
    ['1', '2', '3–4']
    """
    path = destination(save)
    _check(losses, contexts)
    heading = titled(title)
    models, names = [visible(model) for model in losses], [visible(name) for name in contexts]
    with style((heading, *models, *names)):
        wide = max(WIDE, len(names) * (0.06 + width_of(names, 8)))
        width = LEFT + wide + 0.2 + width_of(models, 8)
        heading, tall = heading_of(heading, width - 2 * MARGIN)
        top = MARGIN + tall + ABOVE
        sheet = Sheet.of(width, top + HIGH + BELOW)
        axes = sheet.axes(LEFT, top, wide, HIGH)
        _plot(axes, list(losses.values()), len(names))
        name_panel(axes, "loss, nats per token", HIGH)
        axes.set_xticks(range(len(names)), names, parse_math=False, size=8)
        last = [line[-1][0] for line in losses.values()]
        ends = [End(1, *end) for end in zip(last, models, LINES, strict=False)]
        name_ends(axes, ends, axes.get_yaxis_transform())
        sheet.write(MARGIN, MARGIN, heading)
        return finish(sheet.figure, path)


def _check(losses: Mapping[str, Sequence[Interval]], contexts: Sequence[str]) -> None:
    if not 1 <= len(losses) <= len(LINES):
        expected = f"one to {len(LINES)} models"
        raise build(ArgumentError, "losses", expected, len(losses), fix="draw two figures")
    for model, line in losses.items():
        name = f"losses[{model!r}]"
        if not 1 <= len(line) <= len(contexts):
            expected = f"one to {len(contexts)} numbers, one for each of the first contexts"
            raise build(ArgumentError, name, expected, len(line))
        for point in line:
            if not is_interval(point):
                expected = "finite numbers, each with the two ends of its interval, all ≥ 0"
                raise build(ArgumentError, name, expected, repr(point))


def _plot(axes: Axes, lines: Sequence[Sequence[Interval]], contexts: int) -> None:
    for line, colour, mark in zip(lines, LINES, MARKS, strict=False):
        middle, low, high = zip(*line, strict=True)
        at = range(len(line))
        axes.fill_between(at, low, high, color=colour, alpha=0.15, lw=0)
        axes.plot(at, middle, color=colour, lw=1.6, marker=mark, ms=4, clip_on=False)
        if len(line) < contexts:
            beyond = [len(line) - 1, contexts - 0.65]
            axes.plot(beyond, [middle[-1]] * 2, color=colour, lw=1.2, ls=":")
    axes.set_xlim(-0.35, contexts - 0.65)
    few_ticks(axes.yaxis, 5)
    axes.set_xlabel("tokens of context", color=QUIET, size=8)
    open_axes(axes, "y")
