"""Scaled dot-product attention of one query, step by step."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np

from intently.core.attention import Attention
from intently.foundation.arrays import Numbers
from intently.show.animate.animation import Animation, destination, told
from intently.show.animate.live import Live, Step
from intently.show.animate.operands import Steps, most_keys, one_head, short, steps
from intently.show.animate.stage import LONG, SHORT, Stage, number, numerals, strips
from intently.show.animate.table import Table
from intently.show.inputs import place

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
