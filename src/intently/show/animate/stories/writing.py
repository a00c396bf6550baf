"""A decoder writes, and its alignment moves: the source words that each new word looks at."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from intently.errors import ArgumentError, build
from intently.foundation.tokens import bare
from intently.show.animate.animation import Animation, destination, told
from intently.show.animate.operands import finite
from intently.show.animate.stage import LONG, MARGIN, Curve, Grid, Stage, Text, number, widths
from intently.show.inputs import Choice, Source, one_of
from intently.show.labels import titled, visible
from intently.show.reading import at_most, names, numbers

WIDEST = 1180.0
SIZE, HIGH, APART = 13.0, 26.0, 150.0
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
    above, below = _laid(source, produced)
    stage = Stage()
    top = MARGIN + 34
    stage.put(
        Text("source", MARGIN, MARGIN, "source", 11, "quiet"),
        Text("written", MARGIN, top + HIGH + APART + HIGH + 14, "written", 11, "quiet"),
    )
    _source(stage, source, above, top, None)
    stage.scene(f"The source stands: {len(source)} words. The decoder writes word by word.")
    for i, word in enumerate(produced):
        stage.change_all("ribbon", opacity=0.16)
        _source(stage, source, above, top, weights[i])
        stage.change_all("made", edge="frame")
        x, wide = below[i]
        stage.put(
            Grid(f"made.{i}", x, top + HIGH + APART, (wide, HIGH), ((0.0,),), (word,), SIZE, "blue")
        )
        _ribbons(stage, (above, below[i]), weights[i], top, i)
        best = int(weights[i].argmax())
        said = f"most at ‘{source[best]}’ ({weights[i, best]:.2f})"
        said = said if weights[i].any() else "at nothing"
        stage.scene(f"‘{word}’ is written, looking {said}.", 1.3)
    stage.change_all("ribbon", opacity=1.0)
    stage.change(f"made.{len(produced) - 1}", edge="frame")
    _source(stage, source, above, top, None)
    _received(stage, above, weights, top)
    stage.scene("All of it: what was looked at while each word was written.", LONG)
    opening = "Every word that is written looks at words of the source."
    return told(stage, titled(title or "A decoder writes", chosen), path, opening)


Places = list[tuple[float, float]]


def _laid(source: Sequence[str], produced: Sequence[str]) -> tuple[Places, Places]:
    """Return left ends and widths of the words of both lines, spread to equal length."""
    wide = [[width + 14 for width in widths(side, SIZE)] for side in (source, produced)]
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
    above, below = (_spread(side, max(whole, 420.0)) for side in wide)
    return above, below


def _spread(wide: Sequence[float], whole: float) -> Places:
    gap = min((whole - sum(wide)) / max(1, len(wide) - 1), 48.0)
    left = MARGIN + (whole - sum(wide) - gap * (len(wide) - 1)) / 2
    found = []
    for width in wide:
        found.append((left, width))
        left += width + gap
    return found


def _source(
    stage: Stage, words: Sequence[str], places: Places, top: float, weights: np.ndarray | None
) -> None:
    for j, (word, (x, wide)) in enumerate(zip(words, places)):
        shade = 0.0 if weights is None else round(float(weights[j]), 3)
        stage.put(Grid(f"source.{j}", x, top, (wide, HIGH), ((shade,),), (word,), SIZE))


def _ribbons(
    stage: Stage,
    places: tuple[Places, tuple[float, float]],
    weights: np.ndarray,
    top: float,
    i: int,
) -> None:
    above, (x, wide) = places
    for j, weight in enumerate(map(float, weights)):
        if weight >= SEEN:
            left, width = above[j]
            stage.put(
                Curve(
                    f"ribbon.{i}.{j}",
                    x + wide / 2,
                    top + HIGH + APART,
                    left + width / 2,
                    top + HIGH,
                    1 + 13 * weight,
                    round(0.25 + 0.6 * weight, 3),
                )
            )


def _received(stage: Stage, above: Places, weights: np.ndarray, top: float) -> None:
    for j, (x, wide) in enumerate(above):
        said = number(float(weights[:, j].sum()), 1)
        stage.put(Text(f"got.{j}", x + wide / 2, top - 8, said, 10, "quiet", "middle"))
    stage.change("source", text="source, and how much each word was looked at in all")
