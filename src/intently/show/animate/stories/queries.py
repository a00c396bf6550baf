"""Two stories of queries: one step by step, and many as a dictionary that answers softly."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from intently.core.attention import Attention
from intently.errors import ArgumentError, build
from intently.foundation.arrays import Numbers
from intently.show.animate.animation import Animation, destination, told
from intently.show.animate.operands import ScoreSteps, one_head, short, steps
from intently.show.animate.stage import (
    HIGH,
    LONG,
    SHORT,
    USUAL,
    CellGrid,
    Stage,
    Words,
    alone,
    largest,
    number,
    numerals,
    shades,
    shortened,
    strips,
    widest,
)
from intently.show.animate.table import ROW, QueryTable, Step
from intently.show.inputs import place
from intently.show.reading import at_most

MOST_KEYS = 24
"""Keys of one query that have room on one sheet."""
SINGLY = 8
"""Up to so many keys are met one by one; of more, the first four."""
QUERIES, KEYS = 8, 16
"""Of a dictionary."""


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
    cause, fix = "every key is a row of the picture", f"it.attend(q, k[…, :{MOST_KEYS}, :])"
    most = chosen.matrix.shape[-2], MOST_KEYS
    at_most(chosen.matrix, most, f"{MOST_KEYS} keys", cause, f"attend to fewer: {fix}")
    at = place(query, chosen.queries, "query")
    asked, keys = f"‘{short(chosen.queries)[at]}’", short(chosen.keys)
    one = steps(chosen.matrix, at)
    columns = _columns(one, asked)
    (shown, note), (averaged, other) = strips(one.k), strips(chosen.values)
    asking = strips(one.q[None])[0]
    stage = Stage()
    computed = {name: column.values for name, column in columns.items()}
    table = QueryTable(stage, keys, asking, shown, averaged, computed)
    darkest = largest(one.q, one.k)
    table.lay_out(darkest)
    table.ask(asked, asking[0], darkest)
    note = note or other
    stage.scene(f"{asked} asks with its query; every word answers with a key and a value{note}.")
    scored, *later = columns
    _meet(stage, table, one, asked, scored)
    stage.drop("frame")
    for name in later:
        for j, value in enumerate(columns[name].values):
            table.figure(name, j, float(value))
            if name == "mask" and value == -np.inf:
                for part in ("key", "value"):
                    stage.change(f"{part}.{j}", opacity=0.3, texts=())
                stage.change(f"name.{j}", colour="quiet")
        stage.scene(columns[name].says, LONG if name == "mask" else 2.0)
    stage.drop("frame", "products", "times")
    table.weigh(one.weights)
    stage.scene(_softmax(one), LONG)
    table.spread(one.weights)
    stage.scene("Each value counts as much as its weight …")
    table.add_up(one.weights @ table.values)
    stage.scene(f"… and their sum is the output of {asked}.", LONG)
    said = "looks at nothing: its output is 0."
    if one.weights.any():
        best = int(one.weights.argmax())
        taken = number(float(one.weights[best]))
        said = f"takes most from ‘{keys[best]}’: {taken} of its weight."
    stage.scene(f"{asked} {said}", LONG)
    opening = f"How {asked} attends: a weight for every word, and the weighted sum of values."
    scaled = later[0]
    shows: dict[str, Step] = {name: column.step for name, column in columns.items()}
    shows[[*columns][-1]] = "logits"
    texts = {f"head.{scaled}": table.columns[scaled][1].heading("× {scale}")}
    live = table.live([one], 0, asked, darkest, shows, texts)
    return told(stage, title or f"How {asked} attends", path, opening, live)


@dataclass(frozen=True)
class _FormulaStep:
    """One step of the formula: its numbers for each key, and what it does in words."""

    step: Step
    values: np.ndarray
    says: str = ""


def _columns(one: ScoreSteps, asked: str) -> Mapping[str, _FormulaStep]:
    """Return the steps of a query by their headings: its scores, scaled, and what changes them."""
    d, scale = len(one.q), f"{one.scale:.3g}".replace("-", "−")
    says = f"Every score is multiplied by {scale}."
    if one.products and abs(one.scale * d**0.5 - 1) < 1e-6:
        says = f"Every score is multiplied by 1/√{d} = {scale}, so that long vectors do not"
        says += " make it extreme."
    columns = {
        "q · k" if one.products else "score": _FormulaStep("scores", one.scores),
        f"× {scale}": _FormulaStep("scaled", one.scaled, says),
    }
    if one.capped is not None:
        cap = number(one.softcap or 0.0)
        says = f"The softcap keeps every score between −{cap} and {cap}."
        columns["softcap"] = _FormulaStep("capped", one.capped, says)
    if one.biased is not None:
        says = "The bias is added: here position speaks."
        columns["+ bias"] = _FormulaStep("biased", one.biased, says)
    if hidden := int(np.isneginf(one.logits).sum()):
        keys = "one key that" if hidden == 1 else f"{hidden} keys that"
        says = f"The mask: {keys} {asked} may not see get −∞, and so no weight."
        columns["mask"] = _FormulaStep("logits", one.logits, says)
    return columns


def _meet(stage: Stage, table: QueryTable, one: ScoreSteps, asked: str, column: str) -> None:
    """Score every key, the first ones in a scene each."""
    said = "a score of its query and each key says how well they match."
    products = np.empty(0)
    if one.products:
        said = "its products with a key, added up, say how well they match."
        products, _ = strips(one.q * one.k)
    singly = len(one.scores) if len(one.scores) <= SINGLY else 4
    for j, score in enumerate(one.scores):
        if one.products:
            table.match(j, products[j], largest(products), numerals(products))
        table.figure(column, j, float(score))
        if j < singly:
            stage.scene(f"{asked} meets ‘{table.names[j]}’: {said}", LONG if j == 0 else SHORT)
    if singly < len(one.scores):
        stage.scene(f"So it meets all {len(one.scores)} of them.", 1.2)


def _softmax(one: ScoreSteps) -> str:
    if one.sink is None and not one.weights.any():
        return "Softmax has nothing to share out: no key may be seen, and all weights are 0."
    said = "Softmax: e to the power of each, divided by their sum, so that weights add up to 1"
    if one.sink is None:
        return f"{said}."
    taken = number(1 - float(one.weights.sum()))
    return f"{said}; the sink takes {taken} of it and gives nothing."


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
        kind = type(chosen.matrix.problem.score).__name__
        fix = "animate.product tells any score"
        raise build(ArgumentError, "matrix", "scores that are dot products", kind, fix=fix)
    d = len(every[0].q)
    if len(features) not in (0, d):
        raise build(ArgumentError, "features", f"d={d} names, or none", len(features))
    queries, keys = short(chosen.queries), short(chosen.keys)
    stage = Stage()
    asked = np.stack([one.q for one in every])
    asking, shown, averaged = (strips(x)[0] for x in (asked, every[0].k, chosen.values))
    matches = {"match": np.stack([one.scaled for one in every])}
    table = QueryTable(stage, keys, asking, shown, averaged, matches, features)
    darkest = largest(asked, shown)
    table.lay_out(darkest)
    stage.scene("A dictionary has keys and values. Who asks with a key gets its value.")
    summary = _WeightSummary(stage, table, queries, keys)
    for i, (query, one) in enumerate(zip(queries, every)):
        output = one.weights @ table.values
        stage.drop("match", "bar", "weight", "part", "sum", "head.match", "head.weights")
        table.ask(f"‘{query}’", asking[i], darkest)
        table.make_room()
        stage.change("output", text="")
        said = f"‘{query}’ asks for something that is not a key"
        stage.scene(said + ("." if i else ": nobody would answer."), SHORT if i else USUAL)
        for j, match in enumerate(one.scaled):
            table.figure("match", j, float(match))
        best = int(one.weights.argmax())
        matched = f"matches ‘{keys[best]}’ best" if one.weights.any() else "may see no key"
        said = "How well does each key match? The dot product says."
        stage.scene(f"‘{query}’ {matched}." if i else said)
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
        stage.scene(f"‘{query}’ {said}.", LONG)
    stage.scene("Each row is one query's weights over all keys: the attention matrix.", LONG)
    opening = "Every query asks every key, and gets a mixture of their values."
    rows = [f"row.{i}" for i in range(len(queries))]
    texts = {"head.match": table.columns["match"][1].heading("match/{τ}")}
    last = len(queries) - 1
    live = table.live(
        every, last, f"‘{queries[-1]}’", darkest, {"match": "logits"}, texts, features, rows
    )
    return told(stage, title or "A dictionary that answers softly", path, opening, live)


class _WeightSummary:
    """The matrix below the table: a row for each query, a column for each key."""

    def __init__(
        self, stage: Stage, table: QueryTable, queries: Sequence[str], keys: Sequence[str]
    ) -> None:
        self.stage, self.queries, self.keys = stage, queries, keys
        self.left = max(table.x, widest(queries, 12.0) + 30)
        room = max(table.right + 60 - self.left, 300.0) / len(keys)
        self.cell = min(max(widest(keys, 10.0) + 8, 40.0), max(room, 40.0))
        self.top = table.bottom + 62

    def row(self, i: int, weights: np.ndarray) -> None:
        """Write the weights of a query into its row."""
        for j, key in enumerate(self.keys if not i else ()):
            x, name = self.left + (j + 0.5) * self.cell, shortened(key, self.cell - 4, 10)
            self.stage.put(Words(f"key_of.{j}", x, self.top - 12, name, 10, "quiet", "middle"))
        y = self.top + i * ROW
        texts = tuple(number(float(weight)) for weight in weights)
        self.stage.put(
            Words(f"query_of.{i}", self.left - 10, y + HIGH / 2, self.queries[i], anchor="end"),
            CellGrid(
                f"row.{i}", self.left, y, (self.cell, HIGH), shades(weights[None], 1.0), texts
            ),
        )
