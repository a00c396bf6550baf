"""From uniform to argmax: one query's weights at falling temperatures."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np

from intently.attention_matrix import Attention
from intently.errors import ArgumentError, build
from intently.show.animate.animation import Animation, destination, told
from intently.show.animate.live import Live
from intently.show.animate.numerals import Numerals
from intently.show.animate.operands import both_names, most_keys, scored, short, steps
from intently.show.animate.shapes import Grid, Text
from intently.show.animate.stage import LONG, MARGIN, Stage, bar, number, widest
from intently.show.choosing import place

LARGEST = 32
BAR, ROW, TOP = 420.0, 25.0, MARGIN + 46
FALLING = (math.inf, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.0)


def temperature(
    matrix: Attention,
    *,
    query: int | str = -1,
    head: int | None = None,
    temperatures: Sequence[float] = FALLING,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Animation:
    """Explain how temperature τ turns the scores z of one query into weights softmax(z/τ).

    At τ = ∞, all visible keys share equally; at τ = 1, the weights are those of the matrix; at τ =
    0, the highest score takes all (ties share). ``matrix`` is an attention (t, s) or one ``head``
    of (h, t, s); a sink is one more row. Returns the story, written to ``save`` if given.

    Raises ArgumentError for more than 32 keys, a query that may see nothing, and temperatures
    below 0; KindError for a matrix without scores.

    Source: Hinton, Vinyals & Dean 2015, "Distilling the Knowledge in a Neural Network", section 2.

    >>> import torch
    >>> from intently import attend
    >>> story = temperature(attend(torch.eye(2), torch.eye(2)), temperatures=(1, 0))
    >>> story.captions[-1]
    'τ → 0: ‘1’ takes all.'
    """
    path = destination(save)
    found = scored(matrix, head)
    most_keys(found, LARGEST)
    temperatures = [float(given) for given in temperatures]
    for given in temperatures:
        if not given >= 0:
            raise build(ArgumentError, "temperatures", "numbers from 0 to infinity", given)
    if not temperatures:
        raise build(ArgumentError, "temperatures", "at least one number", "none")
    queries, keys = both_names(found)
    at = place(query, queries, "query")
    scores = steps(found, at)
    logits, names = scores.logits, list(short(keys))
    if np.isneginf(logits).all():
        raise build(ArgumentError, "query", "a query that may see a key", repr(query))
    if scores.sink is not None:
        logits, names = np.append(logits, scores.sink), [*names, "(sink)"]
    stage = Stage()
    x = _rows(stage, names, logits)
    for n, heat in enumerate(temperatures):
        weights = softened(logits, heat)
        _weigh(stage, x, weights, heat, (n, len(temperatures)))
        hold = LONG if n in (0, len(temperatures) - 1) or heat == 1 else 1.2
        stage.scene(_said(heat, weights, names), hold)
    asked = f"‘{short(queries)[at]}’"
    plain = min(range(len(temperatures)), key=lambda n: abs(temperatures[n] - 1))
    opening = f"The temperature τ divides the scores of {asked} before the softmax."
    title = title or f"What {asked} looks at, from hot to cold"
    live = _live(logits, names, asked, temperatures[plain])
    return told(stage, title, path, opening, plain, live)


def _live(logits: np.ndarray, names: Sequence[str], asked: str, heat: float) -> Live | None:
    if not 0 < heat < math.inf:
        return None
    formula = {
        **dict.fromkeys(("q", "k", "softcap", "bias", "sink")),
        "scores": [np.where(np.isfinite(logits), logits, 0.0).tolist()],
        "v": [[]] * len(names),
        "scale": 1.0,
        "allowed": [np.isfinite(logits).tolist()],
    }
    moved = ("hot", "track", "knob", "cold")
    texts = (("heat", "τ = {τ}"),)
    return Live(formula, tuple(names), 0, asked, (), BAR, texts=texts, left_out=moved, tau=heat)


def softened(logits: np.ndarray, heat: float) -> np.ndarray:
    """Return softmax(z/τ), its limits at 0 and infinity included.

    >>> softened(np.array([1.0, 3.0, -np.inf]), math.inf), softened(np.array([1.0, 3.0]), 0)
    (array([0.5, 0.5, 0. ]), array([0., 1.]))
    """
    seen = np.isfinite(logits)
    if heat == math.inf:
        return seen / seen.sum()
    if heat == 0:
        best = logits == logits.max()
        return best / best.sum()
    powers = np.exp((logits - logits.max()) / heat)
    return powers / powers.sum()


def _rows(stage: Stage, names: Sequence[str], logits: np.ndarray) -> float:
    x = MARGIN + max(widest(names, 12.0), widest(["key"], 11)) + 12
    written = Numerals.of(logits)
    told = ["hidden" if value == -np.inf else written(value) for value in logits]
    heading = written.heading("score")
    x += max(widest(told, 12.0), widest([heading], 11)) + 12
    stage.put(
        Text("head.key", MARGIN, TOP - 12, "key", 11, "quiet"),
        Text("head.score", x - 12, TOP - 12, heading, 11, "quiet", "end"),
    )
    for j, (name, score) in enumerate(zip(names, told, strict=True)):
        y = TOP + j * ROW + ROW / 2
        colour = "quiet" if score == "hidden" else "ink"
        stage.put(
            Text(f"name.{j}", MARGIN, y, name, 12, colour),
            Text(f"score.{j}", x - 12, y, score, 12, colour, "end"),
        )
    return x


def _weigh(stage: Stage, x: float, weights: np.ndarray, heat: float, step: tuple[int, int]) -> None:
    share = step[0] / max(1, step[1] - 1)
    track = BAR * 0.5
    stage.put(
        Text("hot", x, MARGIN + 6, "hot", 11, "quiet"),
        Grid("track", x + 28, MARGIN + 4, (track, 4), ((0.15,),), edge=""),
        Grid("knob", x + 28 + share * (track - 12), MARGIN, (12, 12), ((0.75,),), edge=""),
        Text("cold", x + 28 + track + 8, MARGIN + 6, "cold", 11, "quiet"),
        Text("heat", x + BAR + 44, MARGIN + 6, _heat(heat), 14, "blue", "end"),
    )
    for j, weight in enumerate(map(float, weights)):
        stage.put(*bar(j, x, TOP + j * ROW, ROW, 4, BAR, weight))


def _heat(heat: float) -> str:
    return "τ → ∞" if heat == math.inf else "τ → 0" if heat == 0 else f"τ = {heat:.4g}"


def _said(heat: float, weights: np.ndarray, names: Sequence[str]) -> str:
    best, top = names[int(weights.argmax())], number(float(weights.max()))
    if heat == math.inf:
        return f"{_heat(heat)}: scores no longer count, every key gets {top}."
    if heat == 0:
        count = int((weights > 0).sum())
        takes = "takes all" if count == 1 else f"and {count - 1} equal to it share all"
        return f"{_heat(heat)}: ‘{best}’ {takes}."
    nats = float(-(weights[weights > 0] * np.log(weights[weights > 0])).sum())
    own = ", the weights of the matrix itself" if heat == 1 else ""
    return f"{_heat(heat)}{own}: entropy {number(nats)} nats, ‘{best}’ gets {top}."
