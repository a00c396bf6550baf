"""A soft dictionary: every key contributes as much as it matches (users × films)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from intently.core.attention import Attention
from intently.errors import ArgumentError, build
from intently.foundation.arrays import Numbers
from intently.show.animate.animation import Animation, destination, told
from intently.show.animate.live import Row
from intently.show.animate.numerals import Numerals, alone
from intently.show.animate.operands import one_head, short, steps
from intently.show.animate.shapes import Grid, Text
from intently.show.animate.stage import (
    LONG,
    SHORT,
    USUAL,
    Stage,
    number,
    shades,
    shortened,
    strips,
    widest,
)
from intently.show.animate.table import HIGH, ROW, Table
from intently.show.reading import at_most

QUERIES, KEYS = 8, 16


def dictionary(
    matrix: Attention,
    values: Numbers,
    *,
    head: int | None = None,
    features: Sequence[str] = (),
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Animation:
    """Explain attention as a dictionary that answers with a mixture, one query after another.

    ``matrix`` is an attention (t, s) of users to films, for example, or one ``head`` of (h, t, s);
    ``values`` (s, e) belong to the keys; ``features`` name the d numbers of queries
    and keys. Returns the story, written to ``save`` if given.

    Raises ArgumentError for more than 8 queries or 16 keys, scores that are not dot products, and
    features that do not fit.

    >>> import torch
    >>> from intently import attend
    >>> users, films = torch.eye(2), 2 * torch.eye(2)
    >>> A = attend(users, films, scale=1).label(("Ada", "Alan"), ("Alien", "Amélie"))
    >>> dictionary(A, torch.tensor([[1.0], [9.0]])).captions[-2]
    '‘Alan’ gets 8.05, mostly from ‘Amélie’ (0.88).'
    """
    path = destination(save)
    chosen = one_head(matrix, values, head)
    expected, cause = f"{QUERIES} queries and {KEYS} keys", "every key is a row, every query a turn"
    fix = "take fewer of them before it.attend"
    at_most(chosen.matrix, (QUERIES, KEYS), expected, cause, fix)
    every = [steps(chosen.matrix, i) for i in range(len(chosen.queries))]
    if not every[0].products:
        raise build(
            ArgumentError,
            "matrix",
            "scores that are dot products",
            type(chosen.matrix.problem.score).__name__,
            fix="animate.product tells any score",
        )
    d = len(every[0].q)
    if len(features) not in (0, d):
        raise build(ArgumentError, "features", f"d={d} names, or none", len(features))
    queries, keys = short(chosen.queries), short(chosen.keys)
    shown, _ = strips(every[0].k)
    averaged, _ = strips(chosen.values)
    stage = Stage()
    asked = np.stack([one.q for one in every])
    asking, _ = strips(asked)
    matches = {"match": np.stack([one.scaled for one in every])}
    table = Table(stage, keys, asking, shown, averaged, matches, features)
    largest = max(float(np.abs(asked).max()), float(np.abs(shown).max()))
    table.lay_out(largest)
    stage.scene("A dictionary has keys and values. Who asks with a key gets its value.")
    summary = _Summary(stage, table, queries, keys)
    for i, one in enumerate(every):
        output = one.weights @ table.values
        _turn(stage, table, asking[i], queries[i], largest)
        said = f"‘{queries[i]}’ asks for something that is not a key"
        stage.scene(said + ("." if i else ": nobody would answer."), SHORT if i else USUAL)
        for j, match in enumerate(one.scaled):
            table.figure("match", j, float(match))
        best = int(one.weights.argmax())
        matched = f"matches ‘{keys[best]}’ best" if one.weights.any() else "may see no key"
        said = "How well does each key match? The dot product says."
        stage.scene(f"‘{queries[i]}’ {matched}." if i else said, USUAL)
        table.weigh(one.weights)
        if i == 0:
            stage.scene("A soft dictionary lets every key answer, as much as it matches.", LONG)
        table.spread(one.weights)
        stage.scene("Each value counts with its weight.", SHORT if i else USUAL)
        table.add_up(output, "answer")
        summary.row(i, one.weights)
        said = "looks at nothing, and gets 0"
        if one.weights.any():
            got = alone(float(output[0])) if len(output) == 1 else "a mixture"
            said = f"gets {got}, mostly from ‘{keys[best]}’ ({number(float(one.weights[best]))})"
        stage.scene(f"‘{queries[i]}’ {said}.", LONG)
    stage.scene("Each row is one query's weights over all keys: the attention matrix.", LONG)
    opening = "Every query asks every key, and gets a mixture of their values."
    rows = [Row(f"row.{i}", "weights", i, Numerals()) for i in range(len(queries))]
    asked, last = f"‘{queries[-1]}’", len(queries) - 1
    live = table.live(every, last, asked, largest, {"match": "logits"}, rows, features)
    heading = table.columns["match"][1].heading("match/{τ}")
    live = replace(live, texts=(("head.match", heading),))
    title = title or "A dictionary that answers softly"
    return told(stage, title, path, opening, live=live)


def _turn(stage: Stage, table: Table, query: np.ndarray, name: str, largest: float) -> None:
    """Clear the table of the query before, and let the next one ask."""
    stage.drop("match", "bar", "weight", "part", "sum", "head.match", "head.weights")
    table.ask(f"‘{name}’", query, largest)
    table.make_room()
    stage.change("output", text="")


class _Summary:
    """The matrix below the table: a row for each query, a column for each key."""

    def __init__(
        self, stage: Stage, table: Table, queries: Sequence[str], keys: Sequence[str]
    ) -> None:
        self.stage, self.queries, self.keys = stage, queries, keys
        self.left = max(table.x, widest(queries, 12.0) + 30)
        room = max(table.right + 60 - self.left, 300.0) / len(keys)
        self.cell = min(max(widest(keys, 10.0) + 8, 40.0), max(room, 40.0))
        self.top = table.bottom + 62

    def row(self, i: int, weights: np.ndarray) -> None:
        """Write the weights of a query into its row."""
        if not i:
            for j, key in enumerate(self.keys):
                x = self.left + (j + 0.5) * self.cell
                name = shortened(key, self.cell - 4, 10)
                self.stage.put(Text(f"key_of.{j}", x, self.top - 12, name, 10, "quiet", "middle"))
        y = self.top + i * ROW
        middle = y + HIGH / 2
        texts = tuple(number(float(weight)) for weight in weights)
        self.stage.put(
            Text(f"query_of.{i}", self.left - 10, middle, self.queries[i], 12, "ink", "end"),
            Grid(f"row.{i}", self.left, y, (self.cell, HIGH), shades(weights[None], 1.0), texts),
        )
