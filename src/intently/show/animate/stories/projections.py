"""Projections: three matrices make a query, a key and a value of every token, digit by digit."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from intently.errors import ArgumentError, build, shape_of
from intently.foundation.arrays import Numbers
from intently.show.animate.animation import Animation, destination, told
from intently.show.animate.numerals import Numerals
from intently.show.animate.operands import finite, token_names
from intently.show.animate.shapes import Colour, Grid, Shape, Text
from intently.show.animate.stage import HIGH, LONG, MARGIN, Stage, lettered, number, room, widest
from intently.show.given import as_numbers, one_item
from intently.show.reading import numbers

TOKENS, WIDE = 6, 6
GAP = 30.0
PARTS = (("q", "queries", "asks"), ("k", "keys", "is found"), ("v", "values", "answers"))


def projections(
    x: Numbers,
    q: Numbers,
    k: Numbers,
    v: Numbers,
    *,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Animation:
    """Explain how x (t, c) becomes queries, keys and values: x times three matrices (c, d).

    ``q`` and ``k`` are (c, d), ``v`` is (c, e), multiplied from the right: transpose the weight of
    a linear layer. Returns the story, written to ``save`` if given.

    Raises ArgumentError for more than 6 tokens or 6 numbers each, for matrices that do not fit x,
    for numbers that are not finite and labels that do not fit.

    Source: Vaswani et al. 2017, section 3.2.2.

    >>> story = projections([[1, 2]], [[1, 0], [0, 1]], [[0, 1], [1, 0]], [[2], [3]])
    >>> story.captions[2]
    'The first number of the query of ‘0’: 1·1 + 2·0 = 1.'
    """
    path = destination(save)
    x = one_item(x, "x", 2)
    if x.ndim != 2 or not 1 <= len(x) <= TOKENS or not 1 <= x.shape[1] <= WIDE:
        wanted = f"shape (t, c), 1 ≤ t ≤ {TOKENS}, 1 ≤ c ≤ {WIDE}"
        raise build(ArgumentError, "x", wanted, shape_of(x), "the story shows every number")
    names, inputs = token_names(labels, len(x)), finite(numbers(x), "x")
    maps = [_map(given, name, inputs) for name, given in (("q", q), ("k", k), ("v", v))]
    if maps[0].shape != maps[1].shape:
        raise build(ArgumentError, "k", f"shape {maps[0].shape} like q", maps[1].shape)
    sheet = _Sheet(names, inputs, maps)
    stage = sheet.stage
    count = f"{len(x)} token{'s' * (len(x) > 1)}"
    stage.scene(f"{count} of {inputs.shape[1]} numbers, and three learned matrices.")
    products = zip(inputs[0], maps[0][:, 0], strict=True)
    terms = " + ".join(f"{_plain(a)}·{_plain(b)}" for a, b in products)
    sheet.result(0, 0, 1)
    total = _plain(float(inputs[0] @ maps[0][:, 0]))
    stage.scene(f"The first number of the query of ‘{names[0]}’: {terms} = {total}.", LONG)
    for n, (_, heading, does) in enumerate(PARTS):
        for i, name in enumerate(names):
            sheet.result(n, i)
            stage.scene(f"‘{name}’ times W{PARTS[n][0]}: so it {does}.", 1.0)
        stage.drop("row", "column", "cell")
        stage.scene(f"All {heading}: the same matrix for every token.")
    stage.scene("One x, three roles: what it asks, how it is found, and what it gives.", LONG)
    opening = "Every token becomes a query, a key and a value, by three matrices."
    return told(stage, title or "From x to queries, keys and values", path, opening)


def _map(given: Numbers, name: str, x: np.ndarray) -> np.ndarray:
    found = as_numbers(given, name)
    if found.ndim != 2 or found.shape[0] != x.shape[1] or not 1 <= found.shape[1] <= WIDE:
        wanted = f"shape (c={x.shape[1]}, d), 1 ≤ d ≤ {WIDE}"
        fix = "a linear layer holds it transposed: layer.weight.T"
        raise build(ArgumentError, name, wanted, shape_of(found), fix=fix)
    return finite(numbers(found), name)


def _plain(value: float) -> str:
    said = str(int(value)) if value == int(value) and abs(value) < 1e6 else number(value)
    said = said.replace("-", "−")
    return f"({said})" if said.startswith("−") else said


class _Sheet:
    """Three lines of x × W = result, one above the other."""

    def __init__(self, names: Sequence[str], x: np.ndarray, maps: Sequence[np.ndarray]) -> None:
        self.stage, self.names, self.x, self.maps = Stage(), names, x, maps
        self.results = [x @ one for one in maps]
        self.left = MARGIN + widest(names, 12.0) + 10
        self.high = HIGH * max(x.shape)
        self.places: list[tuple[float, float]] = []
        for n, (key, heading, _) in enumerate(PARTS):
            y = MARGIN + 24 + n * (self.high + 42)
            for i, name in enumerate(names):
                middle = y + (i + 0.5) * HIGH
                self.stage.put(
                    Text(f"name.{n}.{i}", self.left - 10, middle, name, 12, "ink", "end")
                )
            x2 = self._matrix(f"x.{n}", self.left, y, x, "inputs x") + GAP
            self._sign(f"times.{n}", x2, y, "×")
            x3 = self._matrix(f"w.{key}", x2, y, maps[n], f"W{key}") + GAP
            self._sign(f"equals.{n}", x3, y, "=")
            self.stage.put(self._heading(key, x3, y, heading, self.results[n]))
            self.places += [(x2, x3)]

    def _sign(self, key: str, x: float, y: float, said: str) -> None:
        middle = y + HIGH / 2
        self.stage.put(Text(key, x - GAP / 2, middle, said, 15, "quiet", "middle"))

    def _heading(self, key: str, x: float, y: float, said: str, values: np.ndarray) -> Text:
        return Text(f"head.{key}", x, y - 12, Numerals.of(values).heading(said), 11, "quiet")

    def _matrix(
        self,
        key: str,
        x: float,
        y: float,
        values: np.ndarray,
        heading: str = "",
        edge: Colour = "frame",
        like: np.ndarray | None = None,
    ) -> float:
        every = values if like is None else like
        largest, written = float(np.abs(every).max(initial=0.0)), Numerals.of(every)
        wide = max(room(every), widest((written.heading(heading),), 11) / every.shape[1])
        grid = lettered(key, x, y, values, largest, written, wide, edge=edge)
        self.stage.put(grid)
        if heading:
            self.stage.put(self._heading(key, x, y, heading, every))
        return x + grid.width

    def result(self, n: int, row: int, columns: int | None = None) -> None:
        """Write the results of a token, all or the first columns; frame what makes them."""
        (x2, x3), y, every = self.places[n], MARGIN + 24 + n * (self.high + 42), self.results[n]
        known = np.full(every.shape, np.nan)
        known[: row + 1] = every[: row + 1]
        if columns is not None:
            known[row, columns:] = np.nan
        self._matrix(PARTS[n][0], x3, y, known, "", "blue", every)
        self._frame("row", self.left, y + row * HIGH, self.stage.shapes[f"x.{n}"], (1, None))
        grid = self.stage.shapes[f"w.{PARTS[n][0]}"]
        self._frame("column", x2, y, grid, (None, columns))

    def _frame(
        self, key: str, x: float, y: float, grid: Shape, part: tuple[int | None, int | None]
    ) -> None:
        assert isinstance(grid, Grid)
        rows, columns = part
        high = HIGH * (rows or len(grid.shades))
        wide = grid.cell[0] * (columns or len(grid.shades[0]))
        self.stage.put(Grid(key, x, y, (wide, high), ((None,),), edge="accent"))
