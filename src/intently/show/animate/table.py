"""A table of one query and every key: keys on the left, values on the right.

It reads from left to right, as attention is computed:

    query        ▒▒▒▒
    query × key  ▒▒▒▒
    cat          ▒▒▒▒   0.7   0.4   ▆▆▆  0.5   ▒▒▒▒
    sat          ▒▒▒▒   0.1   0.1   ▆    0.2   ▒▒▒▒
                                       output  ▒▒▒▒
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import numpy as np

from intently.show.animate.operands import ScoreSteps
from intently.show.animate.stage import (
    HIGH,
    MARGIN,
    Anchor,
    CellGrid,
    Numerals,
    Stage,
    Words,
    cell_width,
    headed,
    largest,
    number,
    numerals,
    vector,
    widest,
)

ROW = 26.0
FIGURES = 66.0
BAR = 92.0
GAP = 22.0
HEAD = 11.0

Step = Literal["q", "scores", "scaled", "capped", "biased", "logits", "weights", "output"]


class QueryTable:
    """The layout; ``columns`` holds the computed numbers by heading.

    ``queries`` are all queries of the story. ``features`` name the numbers of keys and queries;
    with them no products are shown. Queries and keys, values, products and each column have one
    number format each; a heading names the factor where there is one.
    """

    def __init__(
        self,
        stage: Stage,
        names: Sequence[str],
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        columns: Mapping[str, np.ndarray],
        features: Sequence[str] | None = None,
    ) -> None:
        self.stage, self.names = stage, names
        self.keys, self.values = keys, values
        self.largest = largest(values)
        self.asked = MARGIN + ROW / 2
        self.top = self.asked + (3 if features is None else 2) * ROW + 8
        d = keys.shape[-1]
        self.cell, self.deep = cell_width(keys, queries), cell_width(values)
        if features is None and queries.shape[-1] == d:
            self.cell = max(self.cell, *(cell_width(query * keys) for query in queries))
        if features:
            self.cell = max(self.cell, widest(features, HEAD - 1) + 8)
        self.x = MARGIN + widest([*names, "query × key"], 12.0) + 12
        self.asks, self.gives = numerals(queries, keys), numerals(values)
        heading = "" if features else headed("keys", self.asks)
        x = self.x + max(self.cell * d, widest((heading,), HEAD))
        self.columns: dict[str, tuple[float, Numerals]] = {}
        for name, computed in columns.items():
            written = Numerals.of(computed)
            x += max(FIGURES, widest((written.heading(name),), HEAD) + 16)
            self.columns[name] = x, written
        self.bar = x + GAP
        self.right = self.bar + BAR + 40 + GAP
        self.bottom = self.y(len(names)) + 16
        for n, name in enumerate(features or ()):
            middle = self.x + (n + 0.5) * self.cell
            stage.put(Words(f"head.{n}", middle, self.top - 13, name, HEAD - 1, "quiet", "middle"))
        if features and self.asks is not None:
            self._heading("keys", self.x - 12, self.asks.factor, "end")
        else:
            self._heading("keys", self.x, heading)
        self._heading("values", self.right, headed("values", self.gives))
        stage.put(Words("output", self.right - 12, self.bottom + HIGH / 2, "", 12, "ink", "end"))
        self.make_room()

    def make_room(self) -> None:
        """Put an empty frame at the place of the output."""
        size = (self.deep * self.values.shape[-1], HIGH)
        self.stage.put(CellGrid("room", self.right, self.bottom, size, ((None,),), opacity=0.6))

    def y(self, row: int) -> float:
        """Return the top of a row's cells."""
        return self.top + row * ROW

    def _heading(self, key: str, x: float, text: str, anchor: Anchor = "start") -> None:
        self.stage.note(f"head.{key}", x, self.top - 13, text, anchor)

    def lay_out(self, most: float) -> None:
        """Put keys and values on the stage; ``most`` is the darkest of queries and keys."""
        for j, name in enumerate(self.names):
            y = self.y(j)
            self.stage.put(
                Words(f"name.{j}", self.x - 12, y + HIGH / 2, name, 12, "ink", "end"),
                vector(f"key.{j}", self.x, y, self.keys[j], most, self.asks, self.cell),
                self._value(f"value.{j}", y, self.values[j], self.gives),
            )

    def ask(self, name: str, query: np.ndarray, most: float) -> None:
        """Put a query above the keys."""
        self.stage.put(
            Words("asks", self.x - 12, self.asked + HIGH / 2, name, 12, "blue", "end"),
            vector("query", self.x, self.asked, query, most, self.asks, self.cell, edge="blue"),
            self._factor("query", self.asked, self.asks),
        )

    def _factor(self, key: str, y: float, written: Numerals | None) -> Words:
        """Return the factor that is written after a vector."""
        x = self.x + self.cell * self.keys.shape[-1] + 8
        factor = "" if written is None else written.factor
        return Words(f"{key}.factor", x, y + HIGH / 2, factor, HEAD, "quiet")

    def match(self, j: int, products: np.ndarray, most: float, written: Numerals | None) -> None:
        """Show the query times key j, and frame that key."""
        y = self.asked + ROW
        size = (self.cell * len(products), HIGH)
        self.stage.put(
            Words("times", self.x - 12, y + HIGH / 2, "query × key", 12, "quiet", "end"),
            vector("products", self.x, y, products, most, written, self.cell),
            self._factor("products", y, written),
            CellGrid("frame", self.x, self.y(j), size, ((None,),), edge="accent"),
        )

    def figure(self, column: str, j: int, value: float) -> None:
        """Write a number into a column, and the column's heading above it."""
        x, written = self.columns[column]
        self._heading(column, x, written.heading(column), "end")
        text, colour = ("−∞", "quiet") if value == -np.inf else (written(value), "ink")
        self.stage.put(Words(f"{column}.{j}", x, self.y(j) + HIGH / 2, text, 12, colour, "end"))

    def weigh(self, weights: np.ndarray) -> None:
        """Draw every weight as a bar with its number."""
        self._heading("weights", self.bar, "softmax")
        for j, weight in enumerate(map(float, weights)):
            wide, y = max(1.0, BAR * weight), self.y(j)
            ink = "ink" if weight >= 0.005 else "quiet"
            self.stage.put(
                CellGrid(f"bar.{j}", self.bar, y + 3, (wide, HIGH - 6), ((0.62,),), edge=""),
                Words(f"weight.{j}", self.bar + wide + 6, y + HIGH / 2, number(weight), 12, ink),
            )

    def spread(self, weights: np.ndarray) -> None:
        """Shade every value by its weight, its share of the sum."""
        parts = weights[:, None] * self.values
        written = None if self.gives is None else self.gives.like(parts)
        for j, part in enumerate(parts):
            self.stage.put(self._value(f"part.{j}", self.y(j), part, written))

    def add_up(self, output: np.ndarray, name: str = "output") -> None:
        """Let the weighted values fall into their sum."""
        self.stage.change_all("part", y=self.bottom, opacity=0.0)
        self.stage.change("output", text=name, colour="blue")
        self.stage.drop("room")
        written = None if self.gives is None else self.gives.like(output)
        self.stage.put(self._value("sum", self.bottom, output, written, edge="blue"))

    def _value(
        self, key: str, y: float, values: np.ndarray, written: Numerals | None, **more: Any
    ) -> CellGrid:
        return vector(key, self.right, y, values, self.largest, written, self.deep, **more)

    def live(
        self,
        every: Sequence[ScoreSteps],
        query: int,
        asked: str,
        most: float,
        columns: Mapping[str, Step],
        texts: Mapping[str, str],
        features: Sequence[str] = (),
        weights: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return what a page computes anew while one drags, and the shapes that show it.

        ``columns`` holds steps by heading, ``texts`` by key what says {τ} or {scale}, ``weights``
        the keys of grids that show the weights of each query. Without ``features`` the numbers of a
        query have their index for a name; they are not dragged where no product gives its scores.
        """
        drags = every[0].dragged and self.asks is not None
        rows = [self._row(key, "weights", i, Numerals(), 1.0) for i, key in enumerate(weights)]
        if drags and self.asks is not None:
            rows.append(self._row("query", "q", query, self.asks, most))
        power = self.gives.power if self.gives else 0
        rows.append(self._row("sum", "output", query, Numerals(power, 0), self.largest))
        named = tuple(features or (f"query[{n}]" for n in range(len(every[0].q))))
        return {
            "formula": formula(every, self.values),
            "names": self.names,
            "query": query,
            "asked": asked,
            "features": named if drags else (),
            "bar": BAR,
            "rows": rows,
            "columns": [
                {"key": key, "step": step, "written": asdict(self.columns[key][1])}
                for key, step in columns.items()
            ],
            "texts": list(texts.items()),
            "left_out": ("times", "products", "products.factor", "frame"),
        }

    def _row(self, key: str, step: Step, i: int, written: Numerals, most: float) -> dict[str, Any]:
        """Describe a grid that shows one step of the formula for query i."""
        return {"key": key, "step": step, "query": i, "written": asdict(written), "largest": most}


def formula(every: Sequence[ScoreSteps], values: np.ndarray) -> dict[str, Any]:
    """Return the formula of some queries over values (s, e); scores that are no products, as such.

    The page applies z = softcap(scale / τ · q·k) + bias, masked, then softmax with the sink.
    Numbers of hidden keys are replaced by 0, for JSON knows no −∞.
    """

    def listed(rows: list[np.ndarray]) -> list[list[float]]:
        return np.nan_to_num(np.stack(rows).astype(np.float64), nan=0, posinf=0, neginf=0).tolist()

    one, bias = every[0], None
    if one.biased is not None:
        before = [one.scaled if one.capped is None else one.capped for one in every]
        bias = listed([one.biased - x for one, x in zip(every, before) if one.biased is not None])
    return {
        "q": listed([one.q for one in every]) if one.products else None,
        "k": one.k.tolist() if one.products else None,
        "scores": None if one.products else listed([one.scores for one in every]),
        "v": values.tolist(),
        "scale": one.scale,
        "softcap": one.softcap,
        "bias": bias,
        "allowed": [np.isfinite(one.logits).tolist() for one in every],
        "sink": one.sink,
    }
