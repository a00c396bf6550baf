"""One word, two readings: what it looks at in two heads, or in two sentences."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from intently.errors import ArgumentError, KindError, build, shape_of
from intently.show.animate.animation import Animation, destination, told
from intently.show.animate.operands import both_names, finite
from intently.show.animate.shapes import Curve, Grid, Text
from intently.show.animate.stage import LONG, MARGIN, Stage, number, widest, widths
from intently.show.choosing import Weights, one_of, place
from intently.show.labels import bare, spaced, visible
from intently.show.reading import numbers

WIDEST = 1180.0
SIZE, HIGH, ROW = 13.0, 24.0, 58.0
FIGURE = 10.0
SEEN = 0.02
"""Weights below are shaded, but get no arc."""
MOST = 6


@dataclass(frozen=True)
class Reading:
    """A text, the position of the word in it, and the weights of that word."""

    name: str
    words: list[str]
    lefts: list[float]
    widths: list[float]
    at: int
    weights: np.ndarray


def readings(
    matrices: Mapping[str, Weights],
    token: int | str,
    *,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Animation:
    """Explain how one word is read: what it looks at in several heads, or in several sentences.

    ``matrices`` names two to six readings, each (t, s) of one text with labels, such as
    ``{"head 0": A[0], "head 3": A[3]}``; for (h, t, s), the mean is used. ``token`` is a position,
    or a text that occurs once in each. Arcs are as wide as the weight, for weights from 0.02.
    Returns the story, written to ``save`` if given.

    Raises ArgumentError for fewer readings than two, a missing word, texts whose queries and keys
    differ, texts wider than 1,180 pixels, and weights that are not finite.

    >>> import torch
    >>> from intently.matrix import Dense
    >>> words = ("it", "was", "tired")
    >>> A = Dense(torch.tensor([[0.1, 0.2, 0.7], [0, 1, 0], [0, 0, 1]]), labels=(words, words))
    >>> story = readings({"head 0": A, "head 1": Dense(torch.eye(3), labels=(words, words))}, "it")
    >>> story.captions[1]
    'head 0: ‘it’ looks most at ‘tired’ (0.70).'
    """
    path = destination(save)
    if not isinstance(matrices, Mapping):
        raise build(
            KindError,
            "matrices",
            "readings by name",
            type(matrices).__name__,
            fix="write {'head 0': A[0], 'head 3': A[3]}",
        )
    if not 2 <= len(matrices) <= MOST:
        raise build(ArgumentError, "matrices", f"two to {MOST} readings", len(matrices))
    found = [_reading(str(name), matrix, token) for name, matrix in matrices.items()]
    high = max(_rise(one, j) for one in found for j in range(len(one.words)))
    top = MARGIN + 0.75 * high + 8
    stage = Stage()
    word = found[0].words[found[0].at]
    _sentence(stage, found[0], top, looking=False)
    stage.scene(f"What does ‘{word}’ look at? It depends on who reads.")
    largest = max(float(one.weights.max()) for one in found) or 1.0
    for n, one in enumerate(found):
        stage.drop("word", "arc", "weight")
        _sentence(stage, one, top, looking=True, largest=largest)
        _kept(stage, one, top + HIGH + 44 + n * ROW, largest, n)
        stage.scene(f"{one.name}: {_most(one)}.", 3.2)
    stage.drop("word", "arc", "weight")
    high = top + HIGH + 44
    for key, shape in list(stage.shapes.items()):
        stage.change(key, y=shape.y - high / 2)
    stage.scene("; ".join(f"{one.name}: {_most(one)}" for one in found) + ".", LONG)
    count = ("Two", "Three", "Four", "Five", "Six")[len(found) - 2]
    return told(stage, title or f"{count} readings of ‘{word}’", path)


def _reading(name: str, matrix: Weights, token: int | str) -> Reading:
    lazy, _ = one_of(matrix, argument=f"matrices[{name!r}]")
    rows, columns = both_names(lazy)
    if lazy.shape[0] != lazy.shape[1]:
        raise build(
            ArgumentError,
            f"matrices[{name!r}]",
            "one text as queries and as keys, shape (t, t)",
            shape_of(lazy),
            fix="for a translation there is animate.writing",
        )
    at = place(token, columns, "token")
    if rows != columns:
        raise build(
            ArgumentError,
            f"matrices[{name!r}]",
            "rows named like columns, or like the next ones",
            f"rows {rows[:4]!r}, columns {columns[:4]!r}",
        )
    words = [visible(bare(text), 20) for text, _ in spaced(columns)]
    weight = widest(("0.00",), FIGURE)  # drawn below the word
    wide = [max(width + 12, weight + 2) for width in widths(words, SIZE)]
    blank = [6.0 if blank else 1.0 for _, blank in spaced(columns)]
    ends = np.cumsum([gap + width for gap, width in zip(blank, wide)])
    if ends[-1] > WIDEST:
        raise build(
            ArgumentError,
            f"matrices[{name!r}]",
            f"a text at most {WIDEST:,.0f} pixels wide",
            f"{ends[-1]:,.0f} pixels",
            "all of it stands on one line",
            "draw it with intently.show.text, which breaks lines",
        )
    lefts = [MARGIN + float(end) - width for end, width in zip(ends, wide)]
    looks = finite(numbers(lazy[at, :]), f"matrices[{name!r}]")
    return Reading(visible(name, 60), words, lefts, wide, at, looks)


def _middle(one: Reading, j: int) -> float:
    return one.lefts[j] + one.widths[j] / 2


def _rise(one: Reading, j: int) -> float:
    if j == one.at or one.weights[j] < SEEN:
        return 40.0
    return min(190.0, 34 + 0.42 * abs(_middle(one, j) - _middle(one, one.at)))


def _sentence(stage: Stage, one: Reading, top: float, looking: bool, largest: float = 1.0) -> None:
    for j, weight in enumerate(map(float, one.weights)):
        shade = round(weight / largest, 3) if looking else 0.0
        seen, middle = looking and weight >= SEEN, _middle(one, j)
        if seen and j != one.at:
            ends = _middle(one, one.at), top, middle, top
            wide, dark = 1 + 10 * weight, 0.35 + 0.5 * shade
            stage.put(Curve(f"arc.{j}", *ends, wide, dark, _rise(one, j)))
        stage.put(_word(f"word.{j}", one, j, top, shade))
        if seen:
            y = top + HIGH + 9
            stage.put(Text(f"weight.{j}", middle, y, number(weight), FIGURE, "quiet", "middle"))


def _kept(stage: Stage, one: Reading, top: float, largest: float, n: int) -> None:
    stage.put(Text(f"kept.{n}", one.lefts[0], top + 8, one.name, 11, "quiet"))
    for j, weight in enumerate(one.weights):
        shade = round(float(weight) / largest, 3)
        stage.put(_word(f"kept.{n}.{j}", one, j, top + 20, shade))


def _word(key: str, one: Reading, j: int, top: float, shade: float) -> Grid:
    """Return word j of a text as a shaded box, framed if it is the query."""
    edge = "accent" if j == one.at else ""
    cell = one.widths[j], HIGH
    return Grid(key, one.lefts[j], top, cell, ((shade,),), (one.words[j],), SIZE, edge)


def _most(one: Reading) -> str:
    if not one.weights.any():
        return f"‘{one.words[one.at]}’ looks at nothing"
    order = [j for j in np.argsort(-one.weights, kind="stable") if j != one.at]
    best = order[0] if order else one.at
    own, most = float(one.weights[one.at]), float(one.weights[best])
    itself = f"itself ({number(own)}), then at " if own > most else ""
    said = f"‘{one.words[one.at]}’ looks most at {itself}‘{one.words[best]}’"
    return f"{said} ({number(most)})"
