"""A decoder writes, and its alignment moves: the source words that each new word looks at."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from intently.errors import ArgumentError, build
from intently.foundation.tokens import bare
from intently.show.animate.animation import Animation, destination, told
from intently.show.animate.operands import finite
from intently.show.animate.stage import LONG, MARGIN, CellGrid, Curve, Stage, Words, number, widths
from intently.show.inputs import Choice, Source, one_of
from intently.show.labels import titled, visible
from intently.show.reading import at_most, names, numbers

WIDEST = 1180.0
SIZE, HIGH, APART = 13.0, 26.0, 150.0
TOP = MARGIN + 34
BOTTOM = TOP + HIGH + APART
"""Where the words of either line begin."""
LARGEST = 64
SEEN = 0.05


def writing(
    matrix: Source,
    *,
    head: Choice = None,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Animation:
    """Explain how a decoder writes: word by word, with ribbons to the source words it looks at.

    ``matrix`` (t, s) has produced words as rows and source words as columns, such as the
    ``alignment`` of a translation; of (h, t, s) ``head`` chooses one, else the mean is taken; of a
    recording it is ``"name"`` or ``("name", head)``. Ribbons are as wide as the weight, for weights
    from 0.05. Returns the story, written to ``save`` if given.

    Raises ArgumentError for more than 64 words a side, lines wider than 1,180 pixels, and weights
    that are not finite.

    Source: the picture of Bahdanau, Cho & Bengio 2015, figure 3, in the order of its rows.

    >>> import torch
    >>> from intently.core.matrix import Dense
    >>> A = Dense(torch.eye(2), labels=(("Je", "bois"), ("I", "drink")))
    >>> writing(A).captions[3]
    '‘bois’ is written, looking most at ‘drink’ (1.00).'
    """
    path = destination(save)
    lazy, chosen = one_of(matrix, head)
    cause, fix = (
        "both texts stand on one line each",
        "merge tokens to words: intently.core.matrix.Merged",
    )
    at_most(lazy, LARGEST, f"{LARGEST} words a side", cause, fix)
    weights = finite(numbers(lazy.dense().detach()), "matrix")
    read, source = names(lazy)
    sides = lazy.labels[0] or read, source
    produced, source = ([visible(bare(text), 18) for text in side] for side in sides)
    above, below = _spread(source, produced)
    stage = Stage()
    stage.note("source", MARGIN, MARGIN, "source")
    stage.note("written", MARGIN, BOTTOM + HIGH + 14, "written")
    _source(stage, source, above)
    stage.scene(f"The source stands: {len(source)} words. The decoder writes word by word.")
    for i, (word, (x, wide), row) in enumerate(zip(produced, below, weights)):
        stage.change_all("ribbon", opacity=0.16)
        _source(stage, source, above, row)
        stage.change_all("made", edge="frame")
        cell = wide, HIGH
        stage.put(CellGrid(f"made.{i}", x, BOTTOM, cell, ((0.0,),), (word,), SIZE, "blue"))
        for j, ((left, width), weight) in enumerate(zip(above, map(float, row))):
            if weight >= SEEN:
                ends = x + wide / 2, BOTTOM, left + width / 2, TOP + HIGH
                shade = round(0.25 + 0.6 * weight, 3)
                stage.put(Curve(f"ribbon.{i}.{j}", *ends, 1 + 13 * weight, shade))
        best = int(row.argmax())
        said = f"most at ‘{source[best]}’ ({row[best]:.2f})" if row.any() else "at nothing"
        stage.scene(f"‘{word}’ is written, looking {said}.", 1.3)
    stage.change_all("ribbon", opacity=1.0)
    stage.change(f"made.{len(produced) - 1}", edge="frame")
    _source(stage, source, above)
    for j, ((x, wide), weight) in enumerate(zip(above, weights.sum(0))):
        said = number(float(weight), 1)
        stage.put(Words(f"got.{j}", x + wide / 2, TOP - 8, said, 10, "quiet", "middle"))
    stage.change("source", text="source, and how much each word was looked at in all")
    stage.scene("All of it: what was looked at while each word was written.", LONG)
    opening = "Every word that is written looks at words of the source."
    return told(stage, titled(title or "A decoder writes", chosen), path, opening)


Places = list[tuple[float, float]]


def _spread(*sides: Sequence[str]) -> list[Places]:
    """Return left ends and widths of the words of both lines, spread to equal length."""
    wide = [[width + 14 for width in widths(tuple(side), SIZE)] for side in sides]
    whole = max(sum(side) + 8 * (len(side) - 1) for side in wide)
    if whole > WIDEST:
        raise build(
            ArgumentError,
            "matrix",
            f"texts at most {WIDEST:,.0f} pixels wide",
            f"{whole:,.0f} pixels",
            "both texts stand on one line each",
            "draw it with intently.show.heatmap",
        )
    whole, lines = max(whole, 420.0), []
    for side in wide:
        gap = min((whole - sum(side)) / max(1, len(side) - 1), 48.0)
        left = MARGIN + (whole - sum(side) - gap * (len(side) - 1)) / 2
        places = []
        for width in side:
            places.append((left, width))
            left += width + gap
        lines.append(places)
    return lines


def _source(
    stage: Stage, words: Sequence[str], places: Places, weights: np.ndarray | None = None
) -> None:
    for j, (word, (x, wide)) in enumerate(zip(words, places)):
        shade = 0.0 if weights is None else round(float(weights[j]), 3)
        stage.put(CellGrid(f"source.{j}", x, TOP, (wide, HIGH), ((shade,),), (word,), SIZE))
