"""The curves of a training run: loss, quality and pace, by step, with the clock below."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from intently.errors import ArgumentError, build
from intently.show.files import destination, finish
from intently.show.labels import titled
from intently.show.sheet import End, Sheet, few_ticks, heading_of, name_ends, name_panel, open_axes
from intently.show.style import LINES, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, float | None]

MARGIN = 0.12
LEFT, WIDE, RIGHT = 0.6, 4.2, 0.85
ABOVE, BELOW = 0.28, 0.12


class Panel(NamedTuple):
    """One row of panels: its name, its height in inches, the curves by key and name."""

    name: str
    height: float
    curves: tuple[tuple[str, str], ...]


LOSS = Panel("loss", 2.1, (("loss", "training"), ("validation_loss", "validation")))
QUALITY = (Panel("exact match", 0.95, (("exact_match", ""),)), Panel("BLEU", 0.95, (("bleu", ""),)))
PACE = (
    Panel("learning rate", 0.75, (("learning_rate", ""),)),
    Panel("tokens per second", 0.75, (("tokens_per_second", ""),)),
)


def training(
    history: Sequence[Row], *, title: str | None = None, save: str | os.PathLike[str] | None = None
) -> Figure:
    """Draw the curves of a run against steps; below the steps stand the seconds, where known.

    ``history`` holds one mapping for each log line: ``step``, ``seconds``, ``loss`` and, where
    known, ``learning_rate``, ``tokens_per_second``, ``validation_loss``, ``exact_match`` (0 to 1)
    and ``bleu`` (0 to 100). A line may lack any key but the step; unknown keys are ignored. A curve
    of more than 60 points is drawn pale under its running mean; a loss that spans more than a
    factor of five gets a logarithmic axis. Returns the figure, written to ``save``.

    Raises ArgumentError for a history without a loss, a line without a step, an unknown suffix.

    >>> run = [{"step": n, "seconds": n / 10, "loss": 4 / n} for n in range(1, 50)]
    >>> [axes.get_xlabel() for axes in training(run).axes]
    ['steps; below, seconds']
    """
    path = destination(save)
    for number, row in enumerate(history):
        if row.get("step") is None:
            raise build(ArgumentError, "history", "a step in every line", f"none in line {number}")
    if not _drawn(history, LOSS):
        raise build(
            ArgumentError,
            "history",
            'a finite "loss" or "validation_loss" in at least one line',
            f"{len(history)} lines without one",
            "the run ended before its first log line, or its loss was never finite",
        )
    heading = titled(title)
    with style((heading,)):
        return finish(_draw(history, heading, _unfinished(history)), path)


def _series(history: Sequence[Row], key: str) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(row.get("step"), row.get(key)) for row in history]
    known = [(float(x), float(y)) for x, y in pairs if x is not None and y is not None]
    points = np.array(known, dtype=float).reshape(-1, 2)
    points = points[np.isfinite(points).all(1)]
    return points[:, 0], points[:, 1]


def _drawn(history: Sequence[Row], panel: Panel) -> bool:
    return any(len(_series(history, key)[0]) for key, _ in panel.curves)


def _unfinished(history: Sequence[Row]) -> str:
    """Return a note on where the loss was not finite; "" if it always was."""
    steps = [row["step"] for row in history if not np.isfinite(row.get("loss") or 0.0)]
    return (
        f"the loss was not finite in {len(steps)} lines, first at step {steps[0]}" if steps else ""
    )


def _draw(history: Sequence[Row], heading: str, foot: str) -> Figure:
    panels = [LOSS, *(panel for panel in (*QUALITY, *PACE) if _drawn(history, panel))]
    width = LEFT + WIDE + RIGHT
    heading, tall = heading_of(heading, width - 2 * MARGIN)
    top = MARGIN + tall + (0.0 if heading else -0.04) + ABOVE
    below = 0.5 + (0.2 if foot else 0)
    height = top + sum(panel.height + ABOVE + BELOW for panel in panels) - ABOVE + below
    sheet = Sheet.of(width, height)

    drawn: list[Axes] = []
    for panel in panels:
        shared = drawn[0] if drawn else None
        axes = sheet.axes(LEFT, top, WIDE, panel.height, sharex=shared)
        name_ends(axes, _plot(axes, history, panel), axes.transData)
        drawn.append(axes)
        top += panel.height + ABOVE + BELOW
    for axes in drawn[:-1]:
        axes.tick_params(axis="x", labelbottom=False)
    _clock(drawn[-1], *_series(history, "seconds"))
    sheet.write(MARGIN, MARGIN, heading)
    sheet.note(LEFT, height - 0.22, foot)
    return sheet.figure


def _plot(axes: Axes, history: Sequence[Row], panel: Panel) -> list[End]:
    """Draw the curves of a panel; return where each ends, with its name or its last value."""
    lowest, highest = np.inf, -np.inf
    ends = []
    for (key, name), colour in zip(panel.curves, LINES, strict=False):
        x, y = _series(history, key)
        if not len(x):
            continue
        lowest, highest = min(lowest, y.min()), max(highest, y.max())
        if len(x) > 60:
            axes.plot(x, y, color=colour, lw=0.6, alpha=0.3)
            y = _running_mean(y)
            axes.plot(x, y, color=colour, lw=1.6)
        else:
            marker = "o" if len(x) <= 30 else ""
            axes.plot(x, y, color=colour, lw=1.6, marker=marker, ms=3, clip_on=False)
        last = float(y[-1])
        ends.append(End(x[-1], last, name or _plain(last), colour))
    name_panel(axes, panel.name, panel.height)
    open_axes(axes)
    _scale(axes, panel, lowest, highest)
    return ends


def _scale(axes: Axes, panel: Panel, lowest: float, highest: float) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    if panel is LOSS and lowest > 0 and highest > 5 * lowest:
        axes.set_yscale("log")
        axes.yaxis.label.set_text("loss (log scale)")
        subs = (1, 2, 5) if highest < 1000 * lowest else (1,)
        axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        if panel is not LOSS:
            fraction = panel.name == "exact match" and highest <= 1
            axes.set_ylim(0, 1.04 if fraction else max(highest, 0) * 1.1 or 1)
        few_ticks(axes.yaxis, 5 if panel is LOSS else 3)
    axes.yaxis.set_major_formatter(lambda value, _: _plain(value))


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


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
