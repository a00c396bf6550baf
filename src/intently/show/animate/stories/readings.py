"""One word, two readings: what it looks at in two heads, or in two sentences, and what differs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from intently.errors import ArgumentError, KindError, build
from intently.foundation.tokens import bare
from intently.show.animate.animation import Animation, destination, told
from intently.show.animate.operands import both_names, finite
from intently.show.animate.shapes import Curve, Grid, Text
from intently.show.animate.stage import LONG, MARGIN, Stage, number, widest, widths
from intently.show.choosing import Weights, one_of, place
from intently.show.labels import spaced, visible
from intently.show.reading import numbers

WIDEST = 1180.0
SIZE, HIGH, ROW = 13.0, 24.0, 74.0
FIGURE = 10.0
APART = 96.0
"""Between a query that is not in the text and the text."""
SEEN = 0.02
"""Weights below are shaded, but get no arc."""
SAME = 0.05
"""Readings with smaller differences are called alike."""
MOST = 6


@dataclass(frozen=True)
class Reading:
    """A text, the word that reads it (at a position in it, or outside), and that word's weights."""

    name: str
    words: list[str]
    lefts: list[float]
    widths: list[float]
    query: str
    at: int | None
    weights: np.ndarray

    def middle(self, j: int) -> float:
        """Return the middle of word j."""
        return self.lefts[j] + self.widths[j] / 2

    def numbered(self) -> list[tuple[str, int]]:
        """Return each word with the number of its occurrence: the same in texts that share it."""
        seen: Counter[str] = Counter()
        found = []
        for word in self.words:
            found.append((word, seen[word]))
            seen[word] += 1
        return found


def readings(
    matrices: Mapping[str, Weights],
    token: int | str | Mapping[str, int | str],
    *,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Animation:
    """Explain how one word reads in several heads or sentences, and where the readings differ most.

    ``matrices`` names two to six readings (t, s) with labels, such as ``{"head 0": A[0], "head 3":
    A[3]}``; for (h, t, s), the mean is used. ``token`` is the row: a position, a text that occurs
    once among the rows, or one for each name. In self-attention, it is a word of the text; in
    cross-attention, it stands above. Ribbons are as wide as the weight, for weights from 0.02.
    Words are compared by their text, not by their position. Returns the story, written to ``save``
    if given.

    Raises ArgumentError for fewer readings than two, a missing word, texts wider than 1,180 pixels,
    and weights that are not finite.

    >>> import torch
    >>> from intently.matrix import Dense
    >>> words = ("it", "was", "tired")
    >>> A = Dense(torch.tensor([[0.1, 0.2, 0.7], [0, 1, 0], [0, 0, 1]]), labels=(words, words))
    >>> story = readings({"head 0": A, "head 1": Dense(torch.eye(3), labels=(words, words))}, "it")
    >>> story.captions[2]
    'head 0: ‘it’ looks most at ‘tired’ (0.70).'
    >>> story.captions[-1]
    'The largest difference: ‘it’ gets 0.10 in head 0 and 1.00 in head 1.'
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
    chosen = token if isinstance(token, Mapping) else dict.fromkeys(matrices, token)
    if missing := [name for name in matrices if name not in chosen]:
        raise build(ArgumentError, "token", "a row for every reading", f"none for {missing[0]!r}")
    found = [_reading(str(name), matrix, chosen[name]) for name, matrix in matrices.items()]
    top = MARGIN + max(map(_room, found)) + 8
    stage = Stage()
    words = list(dict.fromkeys(one.query for one in found))
    asked = " and ".join(f"‘{word}’" for word in words)
    does = "do" if len(words) > 1 else "does"
    _sentence(stage, found[0], top, looking=False)
    stage.scene(f"What {does} {asked} look at? It depends on who reads.")
    largest = max(float(one.weights.max()) for one in found) or 1.0
    for n, one in enumerate(found):
        stage.drop("word", "arc", "weight", "query")
        _sentence(stage, one, top, looking=True, largest=largest)
        _kept(stage, one, top + HIGH + 44 + n * ROW, largest, n)
        stage.scene(f"{one.name}: {_most(one)}.", 3.2)
    stage.drop("word", "arc", "weight", "query")
    high = top + HIGH + 44
    for key, shape in list(stage.shapes.items()):
        stage.change(key, y=shape.y - high / 2)
    said = _compared(stage, found)
    stage.scene(said, LONG)
    count = ("Two", "Three", "Four", "Five", "Six")[len(found) - 2]
    title = title or f"{count} readings of {asked}"
    opening = "; ".join(f"{one.name}: {_most(one)}" for one in found) + "."
    return told(stage, title, path, opening)


def _reading(name: str, matrix: Weights, token: int | str) -> Reading:
    lazy, _ = one_of(matrix, argument=f"matrices[{name!r}]")
    rows, columns = both_names(lazy)
    row = place(token, rows, "token")
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
    looks = finite(numbers(lazy[row, :]), f"matrices[{name!r}]")
    at = row if rows == columns else None
    query = visible(bare(rows[row]), 20)
    return Reading(visible(name, 60), words, lefts, wide, query, at, looks)


def _room(one: Reading) -> float:
    """Return the room above the text that its ribbons take."""
    if one.at is None:
        return HIGH + APART
    return 0.75 * max(_rise(one, j) for j in range(len(one.words)))


def _rise(one: Reading, j: int) -> float:
    if one.at is None or j == one.at or one.weights[j] < SEEN:
        return 40.0
    return min(190.0, 34 + 0.42 * abs(one.middle(j) - one.middle(one.at)))


def _sentence(stage: Stage, one: Reading, top: float, looking: bool, largest: float = 1.0) -> None:
    x = (one.lefts[0] + one.lefts[-1] + one.widths[-1]) / 2
    if one.at is None:
        wide = widest((one.query,), SIZE) + 16
        box, above = (wide, HIGH), top - APART - HIGH
        stage.put(Grid("query", x - wide / 2, above, box, ((0.0,),), (one.query,), SIZE, "accent"))
    for j, weight in enumerate(map(float, one.weights)):
        shade = round(weight / largest, 3) if looking else 0.0
        seen, middle = looking and weight >= SEEN, one.middle(j)
        look = 1 + 10 * weight, 0.35 + 0.5 * shade
        if seen and one.at is None:
            stage.put(Curve(f"arc.{j}", x, top - APART, middle, top, *look))
        elif seen and j != one.at:
            assert one.at is not None
            ends = one.middle(one.at), top, middle, top
            stage.put(Curve(f"arc.{j}", *ends, *look, _rise(one, j)))
        stage.put(_word(f"word.{j}", one, j, top, shade))
        if seen:
            y = top + HIGH + 9
            stage.put(Text(f"weight.{j}", middle, y, number(weight), FIGURE, "quiet", "middle"))


def _kept(stage: Stage, one: Reading, top: float, largest: float, n: int) -> None:
    name = one.name if one.at is not None else f"{one.name}: ‘{one.query}’"
    stage.put(Text(f"kept.{n}", one.lefts[0], top + 8, name, 11, "quiet"))
    for j, weight in enumerate(map(float, one.weights)):
        stage.put(_word(f"kept.{n}.{j}", one, j, top + 20, round(weight / largest, 3)))
        if weight >= SEEN:
            place = one.middle(j), top + 20 + HIGH + 9
            stage.put(Text(f"got.{n}.{j}", *place, number(weight), FIGURE, "quiet", "middle"))


def _word(key: str, one: Reading, j: int, top: float, shade: float) -> Grid:
    """Return word j of a text as a shaded box, framed if it is the query."""
    edge = "accent" if j == one.at else ""
    cell = one.widths[j], HIGH
    return Grid(key, one.lefts[j], top, cell, ((shade,),), (one.words[j],), SIZE, edge)


def _most(one: Reading) -> str:
    if not one.weights.any():
        return f"‘{one.query}’ looks at nothing"
    order = [j for j in np.argsort(-one.weights, kind="stable") if j != one.at]
    best = order[0] if order else one.at or 0
    own, most = 0.0 if one.at is None else float(one.weights[one.at]), float(one.weights[best])
    itself = f"itself ({number(own)}), then at " if own > most else ""
    return f"‘{one.query}’ looks most at {itself}‘{one.words[best]}’ ({number(most)})"


def _compared(stage: Stage, found: list[Reading]) -> str:
    """Frame the words whose weights differ most, one in each reading; return what differs."""
    every = [dict(zip(one.numbered(), map(float, one.weights), strict=True)) for one in found]
    words = list(dict.fromkeys(word for weights in every for word in weights))

    def spread(word: tuple[str, int]) -> float:
        got = [weights.get(word, 0.0) for weights in every]
        return max(got) - min(got)

    best = max(words, key=spread)
    shown = spread(best)
    if shown < SAME:
        return f"The readings hardly differ: at most by {number(shown)}, at ‘{best[0]}’."
    for n, one in enumerate(found):
        own = one.numbered()
        j = max(range(len(own)), key=lambda j: spread(own[j]))
        if spread(own[j]) > 0.5 * shown:
            stage.change(f"kept.{n}.{j}", edge="accent")
    got = [
        f"{number(weights[best])} in {one.name}"
        for one, weights in zip(found, every, strict=True)
        if best in weights
    ]
    lacking = [one.name for one, weights in zip(found, every, strict=True) if best not in weights]
    said = f"The largest difference: ‘{best[0]}’ gets {' and '.join(got)}"
    return f"{said}; {' and '.join(lacking)} has no such word." if lacking else f"{said}."
