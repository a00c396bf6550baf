"""Scaled dot-product attention of one query, step by step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from intently.core.attention import Attention
from intently.errors import ArgumentError, build
from intently.foundation.arrays import Numbers
from intently.show.animate.animation import Animation, destination, told
from intently.show.animate.operands import Steps, most_keys, one_head, short, steps
from intently.show.animate.stage import (
    LONG,
    SHORT,
    USUAL,
    Grid,
    Numerals,
    Stage,
    Text,
    alone,
    number,
    numerals,
    shades,
    shortened,
    strips,
    widest,
)
from intently.show.animate.table import HIGH, ROW, Live, Row, Step, Table
from intently.show.inputs import place
from intently.show.reading import at_most

LARGEST = 24
"""Keys that have room on one sheet."""
SINGLY = 8
"""Up to so many keys are met one by one; of more, the first four."""


def product(
    matrix: Attention,
    values: Numbers,
    *,
    query: int | str = -1,
    head: int | None = None,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Animation:
    """Explain how one query attends: dot products → scale → mask → softmax → weighted sum.

    ``matrix`` is an attention (t, s) or one ``head`` of (h, t, s), ``values`` (s, e) or (g, s, e)
    what it averages; ``query`` is a position, or the text of a label that occurs once. Scores other
    than dot products, softcap, bias, mask and sink are included if the matrix has them. Vectors up
    to 6 wide show their numbers; wider than 96, the means of neighbours. Returns the story, written
    to ``save`` (HTML) if given.

    Raises ArgumentError for more than 24 keys, values that do not fit, an unknown query or head,
    and numbers that are not finite; KindError for a matrix without queries and keys.

    Source: Vaswani et al. 2017, section 3.2.1, equation 1.

    >>> import torch
    >>> from intently import attend
    >>> x = torch.eye(3)
    >>> story = product(attend(x, x).label(None, ("Je", "bois", "du")), x, query=1)
    >>> story.captions[-1]
    '‘bois’ takes most from ‘bois’: 0.47 of its weight.'
    """
    path = destination(save)
    chosen = one_head(matrix, values, head)
    most_keys(chosen.matrix, LARGEST)
    at = place(query, chosen.queries, "query")
    asked, keys = f"‘{short(chosen.queries)[at]}’", short(chosen.keys)
    found = steps(chosen.matrix, at)
    stage = Stage()
    table, note = _table(stage, found, keys, chosen.values)
    largest = float(max(np.abs(found.q).max(), np.abs(found.k).max()))
    table.lay_out(largest)
    table.ask(asked, strips(found.q[None])[0][0], largest)
    stage.scene(f"{asked} asks with its query; every word answers with a key and a value{note}.")
    _scores(stage, table, found, asked)
    _steps(stage, table, found, asked)
    stage.drop("frame", "products", "times")
    table.weigh(found.weights)
    stage.scene(_softmax(found), LONG)
    table.spread(found.weights)
    stage.scene("Each value counts as much as its weight …")
    table.add_up(found.weights @ table.values)
    stage.scene(f"… and their sum is the output of {asked}.", LONG)
    said = "looks at nothing: its output is 0."
    if found.weights.any():
        best = int(found.weights.argmax())
        taken = number(float(found.weights[best]))
        said = f"takes most from ‘{keys[best]}’: {taken} of its weight."
    stage.scene(f"{asked} {said}", LONG)
    opening = f"How {asked} attends: a weight for every word, and the weighted sum of values."
    live = _live(table, found, asked, largest)
    return told(stage, title or f"How {asked} attends", path, opening, live=live)


def _live(table: Table, found: Steps, asked: str, largest: float) -> Live:
    scaled = f"× {_scale(found)}"
    every: dict[str, Step] = {_scored(found): "scores", scaled: "scaled"}
    every |= {"softcap": "capped", "+ bias": "biased", "mask": "logits"}
    columns: dict[str, Step] = {key: step for key, step in every.items() if key in table.columns}
    columns[list(columns)[-1]] = "logits"
    heading = table.columns[scaled][1].heading("× {scale}")
    live = table.live([found], 0, asked, largest, columns)
    return replace(live, texts=((f"head.{scaled}", heading),))


def _table(
    stage: Stage, found: Steps, keys: tuple[str, ...], values: np.ndarray
) -> tuple[Table, str]:
    shown, note = strips(found.k)
    averaged, other = strips(values)
    columns = {_scored(found): found.scores, f"× {_scale(found)}": found.scaled}
    if found.capped is not None:
        columns["softcap"] = found.capped
    if found.biased is not None:
        columns["+ bias"] = found.biased
    if np.isneginf(found.logits).any():
        columns["mask"] = found.logits
    query = strips(found.q[None])[0]
    return Table(stage, keys, query, shown, averaged, columns), note or other


def _scored(found: Steps) -> str:
    return "q · k" if found.products else "score"


def _scores(stage: Stage, table: Table, found: Steps, asked: str) -> None:
    said = "a score of its query and each key says how well they match."
    products = np.empty(0)
    if found.products:
        said = "its products with a key, added up, say how well they match."
        products, _ = strips(found.q * found.k)
    alone = len(found.scores) if len(found.scores) <= SINGLY else 4
    for j, score in enumerate(found.scores):
        if found.products:
            table.match(j, products[j], float(np.abs(products).max()), numerals(products))
        table.figure(_scored(found), j, float(score))
        if j < alone:
            stage.scene(f"{asked} meets ‘{table.names[j]}’: {said}", LONG if j == 0 else SHORT)
    if alone < len(found.scores):
        stage.scene(f"So it meets all {len(found.scores)} of them.", 1.2)


def _steps(stage: Stage, table: Table, found: Steps, asked: str) -> None:
    d = len(found.q)
    said = f"Every score is multiplied by {_scale(found)}."
    if found.products and abs(found.scale * d**0.5 - 1) < 1e-6:
        said = f"Every score is multiplied by 1/√{d} = {_scale(found)}, so that long vectors do not"
        said += " make it extreme."
    stage.drop("frame")
    stages = [(f"× {_scale(found)}", found.scaled, said)]
    if found.capped is not None:
        cap = number(found.softcap or 0.0)
        said = f"The softcap keeps every score between −{cap} and {cap}."
        stages.append(("softcap", found.capped, said))
    if found.biased is not None:
        stages.append(("+ bias", found.biased, "The bias is added: here position speaks."))
    hidden = int(np.isneginf(found.logits).sum())
    if hidden:
        keys = "one key that" if hidden == 1 else f"{hidden} keys that"
        said = f"The mask: {keys} {asked} may not see get −∞, and so no weight."
        stages.append(("mask", found.logits, said))
    for column, values, said in stages:
        for j, value in enumerate(values):
            table.figure(column, j, float(value))
            if column == "mask" and value == -np.inf:
                for name in ("key", "value"):
                    stage.change(f"{name}.{j}", opacity=0.3, texts=())
                stage.change(f"name.{j}", colour="quiet")
        stage.scene(said, LONG if column == "mask" else 2.0)


def _softmax(found: Steps) -> str:
    if found.sink is None and not found.weights.any():
        return "Softmax has nothing to share out: no key may be seen, and all weights are 0."
    said = "Softmax: e to the power of each, divided by their sum, so that weights add up to 1"
    if found.sink is None:
        return f"{said}."
    taken = number(1 - float(found.weights.sum()))
    return f"{said}; the sink takes {taken} of it and gives nothing."


def _scale(found: Steps) -> str:
    return f"{found.scale:.3g}".replace("-", "−")


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
