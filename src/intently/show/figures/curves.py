"""Curves: any number of named series with their intervals, and the history of a training run."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from intently.errors import ArgumentError, KindError, build
from intently.show.labels import lines, titled, visible
from intently.show.layout import Layout, destination, few_ticks, open_axes, width_of
from intently.show.style import LINES, QUIET, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, float | None]
Line: TypeAlias = Sequence[float] | Sequence[tuple[float, float, float]]
"""Numbers, or numbers with the lower and the upper end of their intervals."""

MARKS = ("o", "s", "^", "D")
"""One for each series of few points, so that series differ without colours too."""

WIDE = 4.2
DENSE, MARKED = 60, 30
"""Points above which a curve is drawn pale under its running mean; up to which each is marked."""

HISTORY = {
    "loss": (2.1, {"loss": "training", "validation_loss": "validation"}),
    "exact match": (0.95, {"exact_match": ""}),
    "BLEU": (0.95, {"bleu": ""}),
    "learning rate": (0.75, {"learning_rate": ""}),
    "tokens per second": (0.75, {"tokens_per_second": ""}),
}
"""The panels of a training run: their height in inches, and the name of the curve of each key."""


class Series(NamedTuple):
    """The points of a curve with the ends of their intervals, in a panel."""

    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Panel(NamedTuple):
    """Curves that share their axes."""

    name: str
    height: float
    series: tuple[Series, ...]


def curves(
    values: Mapping[str, Line] | Mapping[str, Mapping[str, Line]] | Sequence[Row],
    at: Sequence[str | float] | None = None,
    *,
    across: str = "",
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw curves: series by name, panels of them by name, or the history of a training run.

    A series holds a number for each place of ``at``, which are numbers or names, by default 0, 1,
    2, …; ``across`` says what they are. A number with the two ends of its interval, (value, low,
    high), is drawn with a band. A series that ends early goes on as dots at its last value.

    A history holds one mapping for each log line: ``step``, ``seconds``, ``loss`` and, where known,
    ``learning_rate``, ``tokens_per_second``, ``validation_loss``, ``exact_match`` (0 to 1) and
    ``bleu`` (0 to 100), as ``run.history.rows()`` does. A line may lack any key but the step;
    unknown keys are ignored. Below the steps stand the seconds; a loss that spans more than a
    factor of five gets a logarithmic axis. A curve of more than 60 points is drawn pale under its
    running mean. Returns the figure, written to ``save``.

    Raises ArgumentError for no series or one without a number, more numbers than places, numbers
    that are not finite, ends of an interval in the wrong order, a history without a loss, a line
    without a step, an unknown suffix.

    >>> scores = {"fixed": [(90, 85, 95), (20, 15, 25)], "attention": [92, 91]}
    >>> [axes] = curves({"BLEU": scores}, ["1–10", "11–20"], across="words").axes
    >>> [label.get_text() for label in axes.get_xticklabels()]
    ['1–10', '11–20']
    >>> run = [{"step": n, "seconds": n / 10, "loss": 4 / n} for n in range(1, 50)]
    >>> [axes.get_xlabel() for axes in curves(run).axes]
    ['steps; below, seconds']
    """
    path = destination(save)
    heading = titled(title)
    if isinstance(values, Mapping):
        panels, places = _read(values, at)
        history, foot = None, ""
    else:
        panels, places = _recorded(values), None
        history, foot = _points(values, "seconds"), ""
        wrong = [row["step"] for row in values if not np.isfinite(row.get("loss") or 0.0)]
        if wrong:
            foot = f"the loss was not finite in {len(wrong)} lines, first at step {wrong[0]}"
    names = [series.name for panel in panels for series in panel.series]
    with style((heading, across, *names, *(panel.name for panel in panels), *(places or ()))):
        parts = [part for place in places or () for part in place.split("\n")]
        room = max(WIDE, len(places or ()) * (0.08 + width_of(parts, 8)))
        layout = Layout(down=0.12)
        rows = [layout.panel(n, 0, room, panel.height) for n, panel in enumerate(panels)]
        for axes, panel in zip(rows, panels, strict=True):
            if axes is not rows[0]:
                axes.sharex(rows[0])
            _plot(axes, panel, None if places is None else len(places))
        if history is not None:
            _clock(rows[-1], *history)
        else:
            rows[-1].set_xlabel(across, color=QUIET, size=8, parse_math=False)
            if places is not None:
                look: dict[str, Any] = {"parse_math": False, "size": 8, "linespacing": 1.35}
                rows[-1].set_xticks(range(len(places)), places, **look)
        for axes in rows[:-1]:
            axes.tick_params(labelbottom=False)
        return layout.finish(heading, foot, path)


# --- what is given --------------------------------------------------------------------------------


def _read(
    values: Mapping[str, Any], at: Sequence[str | float] | None
) -> tuple[list[Panel], list[str] | None]:
    """Return the panels, and the names of the places; None if they are numbers."""
    nested = any(isinstance(series, Mapping) for series in values.values())
    given: Mapping[str, Mapping[str, Line]] = values if nested else {"": values}
    if nested and not all(isinstance(series, Mapping) for series in values.values()):
        raise build(KindError, "values", "series by name, or panels of them", "both")
    if not any(given.values()):
        raise build(ArgumentError, "values", "at least one series", "none")
    lines_of = {
        (panel, name): f"values[{panel!r}][{name!r}]" if nested else f"values[{name!r}]"
        for panel, series in given.items()
        for name in series
    }
    for (panel, name), argument in lines_of.items():
        if not np.iterable(given[panel][name]):
            got = type(given[panel][name]).__name__
            raise build(KindError, argument, "the numbers of a series", got)
    most = max(len(line) for series in given.values() for line in series.values())
    places = list(range(most) if at is None else at)
    named = [lines(place) for place in places if isinstance(place, str)]
    try:
        xs = np.arange(len(places)) if named else np.array(places, dtype=float)
    except (TypeError, ValueError):
        xs = np.array([math.nan])
    if len(named) not in (0, len(places)) or not np.isfinite(xs).all():
        raise build(ArgumentError, "at", "a finite number for each place, or a name", repr(at))
    drawn = {
        panel: tuple(
            _series(lines_of[panel, name], visible(name) if name else "", line, xs)
            for name, line in series.items()
        )
        for panel, series in given.items()
    }
    high = 2.2 if len(given) == 1 else 1.7
    panels = [Panel(visible(panel) if panel else "", high, all) for panel, all in drawn.items()]
    return panels, named or None


def _series(argument: str, name: str, line: Line, places: np.ndarray) -> Series:
    if not len(line):
        raise build(ArgumentError, argument, "at least one number", "none", fix="leave it out")
    if len(line) > len(places):
        expected = f"one to {len(places)} numbers, one for each of the first places"
        raise build(ArgumentError, argument, expected, len(line))
    points = []
    for point in line:
        value = low = high = math.nan
        try:
            value, low, high = map(float, point if np.ndim(point) else (point,) * 3)  # pyright: ignore[reportArgumentType]
            fine = -math.inf < low <= high < math.inf and math.isfinite(value)
        except (TypeError, ValueError):
            fine = False
        if not fine:
            expected = "finite numbers, alone or each with the two ends of its interval"
            raise build(ArgumentError, argument, expected, repr(point))
        points.append((value, low, high))
    return Series(name, places[: len(line)], *np.array(points).T)


def _recorded(history: Sequence[Row]) -> list[Panel]:
    """Return the panels of a training run."""
    rows = history if np.iterable(history) else [history]
    if isinstance(history, str) or not all(isinstance(row, Mapping) for row in rows):
        expected = "series by name, panels of them by name, or the lines of a history"
        raise build(KindError, "values", expected, type(history).__name__)
    for number, row in enumerate(history):
        if row.get("step") is None:
            raise build(ArgumentError, "history", "a step in every line", f"none in line {number}")
    panels = []
    for name, (height, keys) in HISTORY.items():
        points = ((label, *_points(history, key)) for key, label in keys.items())
        series = tuple(Series(label, x, y, y, y) for label, x, y in points if len(x))
        panels += [Panel(name, height, series)] if series else []
    if not panels or panels[0].name != "loss":
        raise build(
            ArgumentError,
            "history",
            'a finite "loss" or "validation_loss" in at least one line',
            f"{len(history)} lines without one",
            "the run ended before its first log line, or its loss was never finite",
        )
    return panels


def _points(history: Sequence[Row], key: str) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(row.get("step"), row.get(key)) for row in history]
    known = [(float(x), float(y)) for x, y in pairs if x is not None and y is not None]
    points = np.array(known, dtype=float).reshape(-1, 2)
    points = points[np.isfinite(points).all(1)]
    return points[:, 0], points[:, 1]


# --- how it is drawn ------------------------------------------------------------------------------


def _plot(axes: Axes, panel: Panel, places: int | None) -> None:
    """Draw the curves of a panel, each named at its end; ``places`` counts those with names."""
    ends = list(_lines(axes, panel, places))
    axes.set_title(panel.name, loc="left", size=9, pad=4, parse_math=False)
    open_axes(axes, "both" if places is None else "y")
    _scale(axes, panel)
    if places is not None:
        axes.set_xlim(-0.35, places - 0.65)
    _name_ends(axes, ends)


def _lines(axes: Axes, panel: Panel, places: int | None) -> Iterator[tuple[float, str, str]]:
    """Draw the curves; yield each's last value, its name or that value as text, and its colour."""
    for n, series in enumerate(panel.series):
        x, y, colour, mark = series.x, series.y, LINES[n % len(LINES)], MARKS[n % len(MARKS)]
        if (series.low < series.high).any():
            if len(x) > 1:
                axes.fill_between(x, series.low, series.high, color=colour, alpha=0.15, lw=0)
            else:  # a band has no width here
                axes.vlines(x, series.low, series.high, color=colour, lw=1.2)
        if len(x) > DENSE:
            axes.plot(x, y, color=colour, lw=0.6, alpha=0.3)
            y, mark = _running_mean(y), ""
        elif len(x) > MARKED:
            mark = ""
        axes.plot(x, y, color=colour, lw=1.6, marker=mark, ms=3.5, clip_on=False)
        if places is not None and len(x) < places:
            axes.plot([x[-1], places - 0.65], [y[-1]] * 2, color=colour, lw=1.2, ls=":")
        yield float(y[-1]), series.name or _plain(float(y[-1])), colour


def _name_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write the name of each curve on the right, moved apart where names would touch."""
    height = -math.inf
    for y, name, colour in sorted(ends):
        start = axes.transData.transform((0, y))[1] * 72 / axes.figure.dpi
        height = max(start, height + 10)
        axes.annotate(
            name,
            (1, y),
            xycoords=axes.get_yaxis_transform(),
            xytext=(5, height - start),
            textcoords="offset points",
            va="center",
            size=8,
            color=colour,
            annotation_clip=False,
            parse_math=False,
        )


def _scale(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    lowest = min(series.low.min() for series in panel.series)
    highest = max(series.high.max() for series in panel.series)
    loss = "loss" in panel.name
    if loss and lowest > 0 and highest > 5 * lowest:
        axes.set_yscale("log")
        axes.set_title(f"{panel.name} (log scale)", loc="left", size=9, pad=4, parse_math=False)
        subs = (1, 2, 5) if highest < 1000 * lowest else (1,)
        axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        if not loss and lowest >= 0:
            fraction = "exact" in panel.name and highest <= 1
            axes.set_ylim(0, 1.04 if fraction else highest * 1.1 or 1)
        few_ticks(axes.yaxis, 5 if panel.height > 1 else 3)
    axes.yaxis.set_major_formatter(lambda value, _: _plain(value))


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}".replace("-", "−")


def _clock(axes: Axes, steps: np.ndarray, seconds: np.ndarray) -> None:
    """Number the steps and, below each number, the seconds after which it was reached."""
    from matplotlib.ticker import MaxNLocator

    def named(step: float, _: float) -> str:
        known = len(steps) and step <= steps[-1]
        at = f"\n{_plain(float(np.interp(step, [0, *steps], [0, *seconds])))}" if known else ""
        return f"{step:,g}{at}"

    axes.set_xlabel("steps; below, seconds" if len(steps) else "steps")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_formatter(named)


def _running_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over a window of a fortieth of the curve, centred, shorter at the ends."""
    half = max(1, len(values) // 80)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(values))
    return (sums[high] - sums[low]) / (high - low)
