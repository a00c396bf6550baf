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
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from intently.show.animate.operands import Steps
from intently.show.animate.stage import (
    MARGIN,
    Anchor,
    Grid,
    Numerals,
    Stage,
    Text,
    bar,
    cell_width,
    headed,
    numerals,
    vector,
    widest,
)

ROW = 26.0
HIGH = 20.0
FIGURES = 66.0
BAR = 92.0
GAP = 22.0
HEAD = 11.0


class Table:
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
        self.largest = float(np.abs(values).max(initial=0.0))
        self.asked = MARGIN + ROW / 2
        self.top = self.asked + (3 if features is None else 2) * ROW + 8
        d = keys.shape[-1]
        self.cell, self.deep = cell_width(keys, queries), cell_width(values)
        if features is None and queries.shape[-1] == d:
            self.cell = max(self.cell, *(cell_width(query * keys) for query in queries))
        if features:
            self.cell = max(self.cell, widest(features, HEAD - 1) + 8)
        left = widest([*names, "query × key"], 12.0)
        self.x = MARGIN + left + 12
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
            stage.put(Text(f"head.{n}", middle, self.top - 13, name, HEAD - 1, "quiet", "middle"))
        if features and self.asks is not None:
            self._heading("keys", self.x - 12, self.asks.factor, "end")
        else:
            self._heading("keys", self.x, heading)
        self._heading("values", self.right, headed("values", self.gives))
        stage.put(Text("output", self.right - 12, self.bottom + HIGH / 2, "", 12, "ink", "end"))
        self.make_room()

    def make_room(self) -> None:
        """Put an empty frame at the place of the output."""
        d = self.values.shape[-1]
        size = (self.deep * d, HIGH)
        self.stage.put(Grid("room", self.right, self.bottom, size, ((None,),), opacity=0.6))

    def y(self, row: int) -> float:
        """Return the top of a row's cells."""
        return self.top + row * ROW

    def _heading(self, key: str, x: float, text: str, anchor: Anchor = "start") -> None:
        self.stage.put(Text(f"head.{key}", x, self.top - 13, text, HEAD, "quiet", anchor))

    def lay_out(self, largest: float) -> None:
        """Put keys and values on the stage; ``largest`` is the darkest of queries and keys."""
        for j, name in enumerate(self.names):
            y = self.y(j)
            self.stage.put(
                Text(f"name.{j}", self.x - 12, y + HIGH / 2, name, 12, "ink", "end"),
                vector(f"key.{j}", self.x, y, self.keys[j], largest, self.asks, self.cell),
                self._value(f"value.{j}", y, self.values[j], self.gives),
            )

    def ask(self, name: str, query: np.ndarray, largest: float) -> None:
        """Put a query above the keys."""
        self.stage.put(
            Text("asks", self.x - 12, self.asked + HIGH / 2, name, 12, "blue", "end"),
            vector("query", self.x, self.asked, query, largest, self.asks, self.cell, edge="blue"),
            self._factor("query", self.asked, self.asks),
        )

    def _factor(self, key: str, y: float, written: Numerals | None) -> Text:
        """Return the factor that is written after a vector."""
        x = self.x + self.cell * self.keys.shape[-1] + 8
        factor = "" if written is None else written.factor
        return Text(f"{key}.factor", x, y + HIGH / 2, factor, HEAD, "quiet")

    def match(self, j: int, products: np.ndarray, largest: float, written: Numerals | None) -> None:
        """Show the query times key j, and frame that key."""
        y = self.asked + ROW
        size = (self.cell * len(products), HIGH)
        self.stage.put(
            Text("times", self.x - 12, y + HIGH / 2, "query × key", 12, "quiet", "end"),
            vector("products", self.x, y, products, largest, written, self.cell),
            self._factor("products", y, written),
            Grid("frame", self.x, self.y(j), size, ((None,),), edge="accent"),
        )

    def figure(self, column: str, j: int, value: float) -> None:
        """Write a number into a column, and the column's heading above it."""
        x, written = self.columns[column]
        self._heading(column, x, written.heading(column), "end")
        hidden = value == -np.inf
        text = "−∞" if hidden else written(value)
        colour = "quiet" if hidden else "ink"
        self.stage.put(Text(f"{column}.{j}", x, self.y(j) + HIGH / 2, text, 12, colour, "end"))

    def weigh(self, weights: np.ndarray, heading: str = "softmax") -> None:
        """Draw every weight as a bar with its number."""
        self._heading("weights", self.bar, heading)
        for j, weight in enumerate(weights):
            self.stage.put(*bar(j, self.bar, self.y(j), HIGH, 3, BAR, float(weight)))

    def spread(self, weights: np.ndarray) -> None:
        """Shade every value by its weight, its share of the sum."""
        parts = weights[:, None] * self.values
        written = None if self.gives is None else self.gives.like(parts)
        for j, part in enumerate(parts):
            self.stage.put(self._value(f"part.{j}", self.y(j), part, written))

    def add_up(self, output: np.ndarray, name: str = "output") -> None:
        """Let the weighted values fall into their sum."""
        for j in range(len(self.names)):
            self.stage.change(f"part.{j}", y=self.bottom, opacity=0.0)
        self.stage.change("output", text=name, colour="blue")
        self.stage.drop("room")
        written = None if self.gives is None else self.gives.like(output)
        self.stage.put(self._value("sum", self.bottom, output, written, edge="blue"))

    def live(
        self,
        every: Sequence[Steps],
        query: int,
        asked: str,
        largest: float,
        columns: Mapping[str, Step],
        more: Sequence[Row] = (),
        features: Sequence[str] = (),
    ) -> Live:
        """Return what keeps the table alive on a page; ``columns`` holds steps by heading."""
        d = len(every[0].q)
        drags = every[0].dragged and self.asks is not None
        rows = list(more)
        if drags and self.asks is not None:
            rows.append(Row("query", "q", query, self.asks, largest))
        power = self.gives.power if self.gives else 0
        rows.append(Row("sum", "output", query, Numerals(power, 0), self.largest))
        return Live(
            formula(every, self.values),
            tuple(self.names),
            query,
            asked,
            tuple(features or (f"query[{n}]" for n in range(d))) if drags else (),
            BAR,
            tuple(rows),
            tuple(Column(key, step, self.columns[key][1]) for key, step in columns.items()),
            left_out=("times", "products", "products.factor", "frame"),
        )

    def _value(
        self, key: str, y: float, values: np.ndarray, written: Numerals | None, **more: Any
    ) -> Grid:
        return vector(key, self.right, y, values, self.largest, written, self.deep, **more)


Step = Literal["q", "scores", "scaled", "capped", "biased", "logits", "weights", "output"]


@dataclass(frozen=True)
class Row:
    """A grid that shows one step of the formula for one query."""

    key: str
    step: Step
    query: int
    written: Numerals
    largest: float = 1.0


@dataclass(frozen=True)
class Column:
    """Texts, one for each key, that show one step of the dragged query."""

    key: str
    step: Step
    written: Numerals


@dataclass(frozen=True)
class Live:
    """The formula of a story, the query that is dragged, and where its numbers stand.

    ``features`` name the numbers of the query; none where they cannot be dragged. ``bar`` is the
    length of a weight's bar at 1; ``texts`` holds by key the texts that say {τ} or {scale};
    ``left_out`` are the keys of shapes that would no longer be true.
    """

    formula: dict[str, Any]
    names: tuple[str, ...]
    query: int
    asked: str
    features: tuple[str, ...]
    bar: float
    rows: tuple[Row, ...] = ()
    columns: tuple[Column, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON, with every digit."""
        return asdict(self)


def formula(every: Sequence[Steps], values: np.ndarray) -> dict[str, Any]:
    """Return the formula of some queries over values (s, e); scores that are no products, as such.

    Numbers of hidden keys are replaced by 0, for JSON knows no −∞.
    """
    one = every[0]
    products = one.products
    return {
        "q": _listed([steps.q for steps in every]) if products else None,
        "k": one.k.tolist() if products else None,
        "scores": None if products else _listed([steps.scores for steps in every]),
        "v": values.tolist(),
        "scale": one.scale,
        "softcap": one.softcap,
        "bias": None if one.biased is None else _listed([_bias(steps) for steps in every]),
        "allowed": [np.isfinite(steps.logits).tolist() for steps in every],
        "sink": one.sink,
    }


def _bias(steps: Steps) -> np.ndarray:
    assert steps.biased is not None
    return steps.biased - (steps.scaled if steps.capped is None else steps.capped)


def _listed(rows: Sequence[np.ndarray]) -> list[list[float]]:
    found = np.stack(rows).astype(np.float64)
    return np.where(np.isfinite(found), found, 0.0).tolist()
