"""The weights of one query at several temperatures, from hot to cold."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from intently.attention_matrix import Attention
from intently.errors import ArgumentError, build
from intently.show.animate.operands import both_names, most_keys, scored, short, steps
from intently.show.animate.stories.temperature import softened
from intently.show.choosing import place
from intently.show.files import destination, finish
from intently.show.labels import titled
from intently.show.sheet import Sheet, heading_of, width_of
from intently.show.style import FRAME, LINES, QUIET, WEIGHTS, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST = 32
MARGIN = 0.12
HIGH, BETWEEN, KEY = 0.5, 0.14, 0.34
TAUS = (math.inf, 4.0, 2.0, 1.0, 0.5, 0.25, 0.0)


def temperature(
    matrix: Attention,
    query: int | str = -1,
    *,
    head: int | None = None,
    temperatures: Sequence[float] = TAUS,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw softmax(z/τ) of one query's scores z as bars, a row for each temperature τ.

    Beside each row stands its entropy in nats: ln s where all s keys share equally, 0 where one
    takes all. At τ = 1 the weights are those of ``matrix``, an attention (t, s) or one ``head`` of
    (h, t, s); a sink is the last bar. Returns the figure, written to ``save``.

    Raises ArgumentError for more than 32 keys, a query that may see nothing, and temperatures below
    0; KindError for a matrix without scores. `intently.show.animate.temperature` is the same as an
    animation. Source: Hinton, Vinyals & Dean 2015, "Distilling the Knowledge in a Neural Network",
    section 2.

    >>> import torch
    >>> from intently import attend
    >>> figure = temperature(attend(torch.eye(3), torch.eye(3)), 0, temperatures=(1, 0))
    >>> [round(float(bar.get_height()), 2) for bar in figure.axes[1].patches]
    [1.0, 0.0, 0.0]
    """
    path = destination(save)
    found = scored(matrix, head)
    most_keys(found, LARGEST)
    taus = [float(tau) for tau in temperatures]
    if not taus or not all(tau >= 0 for tau in taus):
        raise build(ArgumentError, "temperatures", "numbers from 0 to infinity", temperatures)
    queries, keys = both_names(found)
    at = place(query, queries, "query")
    its = steps(found, at)
    logits, names = its.logits, list(short(keys))
    if np.isneginf(logits).all():
        raise build(ArgumentError, "query", "a query that may see a key", repr(query))
    if its.sink is not None:
        logits, names = np.append(logits, its.sink), [*names, "(sink)"]
    heading = titled(title) or f"What ‘{short(queries)[at]}’ looks at"
    with style((heading, *names)):
        return finish(_draw(heading, logits, names, taus), path)


def _draw(heading: str, logits: np.ndarray, names: Sequence[str], taus: Sequence[float]) -> Figure:
    left = MARGIN + width_of(["τ → 0.25"], 9) + 0.12
    cell = max(KEY, width_of(names, 8) + 0.1)
    wide, right = cell * len(names), width_of(["0.00 nats"], 8.5) + 0.24
    width = left + wide + right + MARGIN
    heading, tall = heading_of(heading, width - 2 * MARGIN)
    top = MARGIN + tall + 0.26
    sheet = Sheet.of(width, top + len(taus) * (HIGH + BETWEEN) + 0.18)
    for n, tau in enumerate(taus):
        y = top + n * (HIGH + BETWEEN)
        weights = softened(logits, tau)
        axes = sheet.axes(left, y, wide, HIGH)
        _bars(axes, weights)
        if n == len(taus) - 1:
            axes.set_xticks(range(len(names)), names, parse_math=False, size=8)
        sheet.write(left - 0.1, y + HIGH / 2, _told(tau), size=9, ha="right", va="center")
        said = f"{_entropy(weights):.2f} nats"
        sheet.write(left + wide + 0.12, y + HIGH / 2, said, size=8.5, va="center")
    look = {"size": 8, "color": QUIET, "va": "bottom"}
    sheet.write(left, top - 0.06, "weight of each key", **look)
    sheet.write(left + wide + 0.12, top - 0.06, "entropy", **look)
    sheet.write(MARGIN, MARGIN, heading)
    return sheet.figure


def _bars(axes: Axes, weights: np.ndarray) -> None:
    colours = [LINES[0] if weight == weights.max() else WEIGHTS[4] for weight in weights]
    axes.bar(range(len(weights)), weights, width=0.72, color=colours)
    axes.set(xlim=(-0.5, len(weights) - 0.5), ylim=(0, 1.2), yticks=[], xticks=[])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FRAME)
    axes.tick_params(length=0)
    for n, weight in enumerate(weights):
        if weight >= 0.005:
            axes.text(n, weight + 0.03, f"{weight:.2f}", size=6.5, ha="center", va="bottom")


def _entropy(weights: np.ndarray) -> float:
    seen = weights[weights > 0]
    return abs(float(-(seen * np.log(seen)).sum()))


def _told(tau: float) -> str:
    return "τ → ∞" if tau == math.inf else "τ → 0" if tau == 0 else f"τ = {tau:.4g}"
