"""The matrix view: Q Kᵀ → scale → softmax → · V, one row lit at a time."""

from __future__ import annotations

import os

import numpy as np

from intently.attention_matrix import Attention
from intently.errors import ArgumentError, build
from intently.foundation.arrays import Numbers
from intently.show.animate.animation import Animation, destination, told
from intently.show.animate.numerals import Numerals
from intently.show.animate.operands import one_head, short, steps
from intently.show.animate.shapes import Colour, Grid, Text
from intently.show.animate.stage import (
    HIGH,
    LONG,
    MARGIN,
    USUAL,
    Stage,
    lettered,
    number,
    room,
    shortened,
    widest,
)
from intently.show.reading import at_most

MOST = 6
GAP, LINE, HEAD = 34.0, 66.0, 30.0


def matrices(
    matrix: Attention,
    values: Numbers,
    *,
    head: int | None = None,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Animation:
    """Explain attention as products of matrices: Q Kᵀ → scale → softmax → · V, row by row.

    ``matrix`` is an attention (t, s), or one ``head`` of (h, t, s); ``values`` are (s, e). It is
    what `dictionary` tells of one query after another, of all queries at once. A bias, softcap or
    mask is part of the scaled scores. Returns the story, written to ``save`` if given.

    Raises ArgumentError for more than 6 queries, keys or numbers of a vector, and for scores that
    are not dot products.

    Source: Vaswani et al. 2017, section 3.2.1, equation 1.

    >>> import torch
    >>> from intently import attend
    >>> x = torch.eye(2)
    >>> matrices(attend(x, x, scale=1), [[1.0], [9.0]]).captions[2]
    'Row ‘0’ of Q Kᵀ: its query times every key.'
    """
    path = destination(save)
    chosen = one_head(matrix, values, head)
    cause, fix = "every number is shown", "take fewer of them before it.attend"
    at_most(chosen.matrix, (MOST, MOST), f"{MOST} queries and {MOST} keys", cause, fix)
    every = [steps(chosen.matrix, i) for i in range(len(chosen.queries))]
    wide = max(every[0].k.shape[-1], chosen.values.shape[-1])
    if not every[0].products or wide > MOST:
        wanted = f"dot products of vectors of at most {MOST} numbers, and such values"
        raise build(ArgumentError, "matrix", wanted, f"{wide} numbers", fix="animate.product")
    parts = {
        "Q": np.stack([one.q for one in every]),
        "Kᵀ": every[0].k.T,
        "Q Kᵀ": np.stack([one.scores for one in every]),
        "z": np.stack([one.logits for one in every]),
        "W": np.stack([one.weights for one in every]),
        "V": chosen.values,
    }
    parts["Y"] = parts["W"] @ parts["V"]
    sheet = _Sheet(short(chosen.queries), short(chosen.keys), parts, every[0].scale)
    stage, scale = sheet.stage, f"{every[0].scale:.3g}"
    stage.scene("Queries are the rows of Q, keys the columns of Kᵀ, values the rows of V.")
    for i, name in enumerate(sheet.queries):
        said = f"Row ‘{name}’"
        for key, what in (
            ("Q Kᵀ", f"{said} of Q Kᵀ: its query times every key."),
            ("z", f"{said}, scaled: times {scale}."),
            (
                "W",
                f"{said}, softmax: its weights add up to {number(float(every[i].weights.sum()))}.",
            ),
            ("Y", f"{said} of W times V: the mixture of values it gets."),
        ):
            sheet.row(key, i)
            stage.scene(what, USUAL if i == 0 else 0.8)
    sheet.unlit()
    stage.scene("Every row did the same, and none needs another: all are computed at once.", LONG)
    opening = "Attention of all queries at once: a product of matrices, row by row."
    return told(stage, title or "Attention as matrices", path, opening)


class _Sheet:
    """Q × Kᵀ = scores → scaled above; weights × V = outputs below."""

    def __init__(
        self,
        queries: tuple[str, ...],
        keys: tuple[str, ...],
        parts: dict[str, np.ndarray],
        scale: float,
    ) -> None:
        self.stage, self.queries, self.parts = Stage(), queries, parts
        self.keys, self.places = keys, dict[str, tuple[float, float, float]]()
        left = MARGIN + widest(queries, 12.0) + 10
        top = MARGIN + HEAD + 20
        high = HIGH * max(len(queries), parts["Kᵀ"].shape[0])
        headings = {
            "Q": "queries Q",
            "Kᵀ": "keys Kᵀ",
            "Q Kᵀ": "Q Kᵀ",
            "z": f"× {scale:.3g}".replace("-", "−"),
            "W": "weights W",
            "V": "values V",
            "Y": "outputs Y",
        }
        for y, line, signs in (
            (top, ("Q", "Kᵀ", "Q Kᵀ", "z"), "×=→"),
            (top + high + LINE, ("W", "V", "Y"), "×="),
        ):
            x = left
            for i, name in enumerate(queries):
                place = left - 10, y + (i + 0.5) * HIGH
                self.stage.put(Text(f"name.{line[0]}.{i}", *place, name, 12, "ink", "end"))
            for n, key in enumerate(line):
                values = parts[key]
                heading = Numerals.of(values).heading(headings[key])
                cell = max(room(values), widest((heading,), 11) / values.shape[1])
                if key in ("Kᵀ", "Q Kᵀ", "z", "W"):
                    cell = max(cell, min(widest(keys, 10) + 8, 60.0))
                if key == "V":
                    x += widest(keys, 12)
                self._lay_out(key, heading, x, y, cell)
                x += cell * values.shape[1] + GAP
                if n < len(signs):
                    at = x - GAP / 2 if key != "W" else x - GAP / 2 - 4
                    self.stage.put(Text(f"sign.{key}", at, y + 10, signs[n], 15, "quiet", "middle"))

    def _lay_out(self, key: str, heading: str, x: float, y: float, cell: float) -> None:
        self.places[key] = x, y, cell
        self.stage.put(Text(f"head.{key}", x, y - HEAD, heading, 11, "quiet"))
        if key in ("Kᵀ", "Q Kᵀ", "z", "W"):
            for j, name in enumerate(self.keys):
                at, said = x + (j + 0.5) * cell, shortened(name, cell - 4, 10)
                self.stage.put(Text(f"key.{key}.{j}", at, y - 11, said, 10, "quiet", "middle"))
        if key == "V":
            for j, name in enumerate(self.keys):
                at = x - 8, y + (j + 0.5) * HIGH
                self.stage.put(Text(f"key.V.{j}", *at, name, 12, "ink", "end"))
        if key in ("Q", "Kᵀ", "V"):
            self._write(key, len(self.parts[key]))

    def _write(self, key: str, rows: int, edge: Colour = "frame") -> None:
        (x, y, cell), every = self.places[key], self.parts[key]
        known = every.copy()
        known[rows:] = np.nan
        finite = np.abs(np.where(np.isfinite(every), every, 0.0))
        written, most = Numerals.of(every), float(finite.max(initial=0.0))
        self.stage.put(lettered(key, x, y, known, most, written, cell, edge=edge))

    def row(self, key: str, i: int) -> None:
        """Write row i of a matrix, and light what it is made from."""
        self._write(key, i + 1, "blue" if key == "Y" else "frame")
        self.unlit()
        self._light("from", {"Q Kᵀ": "Q", "z": "Q Kᵀ", "W": "z", "Y": "W"}[key], i)
        self._light("to", key, i)

    def unlit(self) -> None:
        """Put the light out."""
        self.stage.drop("from", "to")

    def _light(self, which: str, key: str, i: int) -> None:
        x, y, cell = self.places[key]
        size = (cell * self.parts[key].shape[1], HIGH)
        self.stage.put(Grid(which, x, y + i * HIGH, size, ((None,),), edge="accent"))
