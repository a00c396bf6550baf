"""Numbers with their intervals side by side, as bars."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from intently.errors import ArgumentError, build
from intently.show.figures.by_length import Interval, is_interval
from intently.show.files import destination, finish
from intently.show.labels import titled, visible
from intently.show.sheet import Sheet, few_ticks, heading_of, name_panel, open_axes, width_of
from intently.show.style import INK, WEIGHTS, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARGIN = 0.12
WIDE, BETWEEN, RIGHT = 2.6, 0.75, 0.65
ROW, ABOVE, BELOW = 0.27, 0.26, 0.32


def bars(
    values: Mapping[str, Mapping[str, Interval]],
    *,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw numbers and their intervals as bars: a panel for each measure, a row for each name.

    ``values[panel][name]`` is a number with the lower and the upper end of its interval; a panel
    may lack names, and rows follow the order of the first panel that has them. The axis of the
    panel "exact match" reaches at least 1. Returns the figure, written to ``save``.

    Raises ArgumentError for no panel, a panel without numbers, numbers below 0 or not finite, ends
    of an interval in the wrong order, an unknown suffix.

    >>> errors = {"additive": (0.15, 0.13, 0.17), "dot": (0.30, 0.27, 0.33)}
    >>> [axes] = bars({"alignment error": errors}).axes
    >>> [label.get_text() for label in axes.get_yticklabels()]
    ['additive', 'dot']
    """
    path = destination(save)
    _check(values)
    heading = titled(title)
    names = list(dict.fromkeys(name for panel in values.values() for name in panel))
    labels = [visible(name) for name in names]
    with style((heading, *labels, *values)):
        left = MARGIN + 0.1 + width_of(labels, 8)
        width = left + len(values) * WIDE + (len(values) - 1) * BETWEEN + RIGHT
        heading, tall = heading_of(heading, width - 2 * MARGIN)
        top = MARGIN + tall + ABOVE
        high = ROW * len(names)
        sheet = Sheet.of(width, top + high + BELOW)
        for column, (panel, numbers) in enumerate(values.items()):
            axes = sheet.axes(left + column * (WIDE + BETWEEN), top, WIDE, high)
            _plot(axes, panel, {names.index(name): number for name, number in numbers.items()})
            axes.set_ylim(len(names) - 0.5, -0.5)
            axes.set_yticks(
                range(len(names)), labels if column == 0 else [""] * len(names), parse_math=False
            )
            name_panel(axes, visible(panel), high)
        sheet.write(MARGIN, MARGIN, heading)
        return finish(sheet.figure, path)


def _check(values: Mapping[str, Mapping[str, Interval]]) -> None:
    if not values:
        raise build(ArgumentError, "values", "at least one panel", "none")
    for panel, numbers in values.items():
        where = f"values[{panel!r}]"
        if not numbers:
            raise build(ArgumentError, where, "at least one number", "none")
        for name, number in numbers.items():
            if not is_interval(number):
                expected = "a finite number ≥ 0 with the two ends of its interval"
                raise build(ArgumentError, f"{where}[{name!r}]", expected, repr(number))


def _plot(axes: Axes, panel: str, rows: Mapping[int, Interval]) -> None:
    highest = max(max(number) for number in rows.values())
    for row, (value, low, high) in rows.items():
        axes.barh(row, value, height=0.62, color=WEIGHTS[4], lw=0)
        axes.hlines(row, low, high, color=INK, lw=1.2)
        axes.annotate(
            f"{value:.3f}" if highest <= 1 else f"{value:.1f}",
            (max(value, high), row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            size=8,
            annotation_clip=False,
        )
    axes.set_xlim(0, max(highest, 1) if panel == "exact match" else highest or 1)
    few_ticks(axes.xaxis, 4)
    open_axes(axes, "x")
    axes.spines["bottom"].set_visible(False)
