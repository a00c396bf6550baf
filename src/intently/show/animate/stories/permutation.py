"""Permuting the inputs only permutes the outputs: attention ignores order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import Numbers
from intently.matrix import LazyMatrix
from intently.show.animate.animation import Animation, destination, told
from intently.show.animate.operands import finite, token_names, without_dropout
from intently.show.animate.shapes import Grid, Text
from intently.show.animate.stage import (
    LONG,
    MARGIN,
    Stage,
    cell_width,
    headed,
    numerals,
    shades,
    strips,
    vector,
    widest,
    within,
)
from intently.show.choosing import one_text
from intently.show.given import one_item
from intently.show.reading import numbers

LARGEST = 16
ROW, CELL = 26.0, 26.0
GAP = 44.0


class Block(Protocol):
    """A layer that attends: `intently.modules.AttentionHead` and `MultiHeadAttention` are some."""

    def __call__(self, x: Tensor, /) -> Tensor:
        """Return y (1, t, c) of x (1, t, c)."""
        ...

    def attend(self, x: Tensor, /) -> LazyMatrix:
        """Return the weights (1, h, t, t) or (1, t, t)."""
        ...


def permutation(
    block: Block,
    x: Numbers,
    *,
    order: Sequence[int] | None = None,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Animation:
    """Explain how the outputs of a block change when its inputs x (t, c) are permuted.

    x may have a batch axis of 1, and be an array or nested lists.
    The new order, ``order`` (the first and the last change places unless given), goes through the
    block too, without dropout, and the story shows its outputs. Without positions and mask, rows of
    the output and rows and columns of the matrix (mean of heads) only change places; with positions
    or a mask, the story reports by how much they differ. Returns the story, written to ``save`` if
    given.

    Raises ArgumentError for more than 16 tokens, inputs that are not finite, labels that do not
    fit, and an ``order`` that is not a permutation; KindError for a block that does not attend.

    Source: Lee et al. 2019, "Set Transformer", section 2.

    >>> import torch
    >>> from intently.modules import AttentionHead
    >>> story = permutation(AttentionHead(8, 4), torch.randn(3, 8), labels=("a", "b", "c"))
    >>> story.captions[-1][:31]
    'The same rows in another order,'
    """
    path = destination(save)
    if not callable(block) or not callable(getattr(block, "attend", None)):
        raise build(
            KindError,
            "block",
            "a layer with forward and attend",
            type(block).__name__,
            fix="bring your weights: intently.modules.MultiHeadAttention.from_weights(…)",
        )
    x = one_item(x, "x", 2, block)
    if x.ndim != 2 or not 2 <= len(x) <= LARGEST:
        raise build(ArgumentError, "x", f"shape (t, c), 2 ≤ t ≤ {LARGEST}", shape_of(x))
    t = len(x)
    new = [t - 1, *range(1, t - 1), 0] if order is None else list(order)
    if sorted(new) != list(range(t)):
        raise build(ArgumentError, "order", f"each number from 0 to {t - 1} once", repr(order))
    names = token_names(labels, t)
    inputs = finite(numbers(x), "x")
    with torch.no_grad(), without_dropout(block):
        before, after = _run(block, x), _run(block, x[new])
    stage = Stage()
    sheet = _Sheet(stage, names, inputs, before[0], (before[1], after[1]))
    said = " ".join(names)
    sheet.inputs(range(t))
    stage.scene(f"In: {said}{sheet.note}.")
    sheet.matrix(before[0], range(t))
    stage.scene("Every token looks at every token: a row of weights for each.")
    sheet.outputs(before[1], range(t))
    stage.scene("Out: for each token its mixture.", LONG)
    sheet.inputs(new)
    stage.scene(f"Now they change places: {' '.join(names[n] for n in new)}.", LONG)
    sheet.matrix(after[0], new)
    stage.scene("The weights go along: rows and columns change places.", LONG)
    sheet.outputs(after[1], new)
    stage.scene("So do the outputs.", LONG)
    apart = float(np.abs(after[1] - before[1][new]).max())
    scale = max(float(np.abs(before[1]).max()), 1e-30)
    if apart <= 1e-4 * scale:
        said = f"The same rows in another order{within(apart)}."
        stage.scene(f"{said} Without positions nobody knows who came first.", LONG)
    else:
        stage.change("out", colour="accent")
        said = f"Not the same rows: they differ by up to {apart:.2g}. This block knows the order:"
        stage.scene(f"{said} it has positions or a mask.", LONG)
    return told(stage, title or "Permuting inputs permutes outputs", path)


def _run(block: Block, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights (t, t), mean of heads, and the outputs (t, c)."""
    matrix = one_text(block.attend(x[None]))
    while matrix.ndim > 2:
        matrix = matrix[0] if matrix.shape[0] == 1 else matrix.mean_heads()
    found = numbers(matrix.dense()), numbers(block(x[None])[0])
    return finite(found[0], "weights of the block"), finite(found[1], "outputs of the block")


class _Sheet:
    """Inputs on the left, weights in the middle, outputs on the right; one row for each token."""

    def __init__(
        self,
        stage: Stage,
        names: Sequence[str],
        x: np.ndarray,
        weights: np.ndarray,
        outputs: tuple[np.ndarray, np.ndarray],
    ) -> None:
        self.stage, self.names = stage, names
        self.x, self.note = strips(x)
        before, after = (strips(y)[0] for y in outputs)
        self.most = [float(np.abs(part).max(initial=0.0)) for part in (self.x, before)]
        self.written = numerals(self.x), numerals(before, after)
        self.heaviest = float(weights.max())
        self.left = MARGIN + widest(names, 12.0) + 10
        wide = cell_width(self.x.shape[1]) * self.x.shape[1]
        heading = headed("inputs x", self.written[0])
        self.middle = self.left + max(wide, widest((heading,), 11)) + GAP
        self.right = self.middle + len(names) * CELL + GAP
        stage.put(Text("in", self.left, MARGIN + 6, heading, 11, "quiet"))

    def y(self, row: int) -> float:
        return MARGIN + 22 + row * ROW

    def inputs(self, order: Sequence[int]) -> None:
        for row, n in enumerate(order):
            y = self.y(row)
            self.stage.put(
                Text(f"name.{n}", self.left - 10, y + 10, self.names[n], 12, "ink", "end"),
                vector(f"x.{n}", self.left, y, self.x[n], self.most[0], self.written[0]),
            )

    def matrix(self, weights: np.ndarray, order: Sequence[int]) -> None:
        """Each weight keeps its key, (query token, key token), wherever it moves."""
        self.stage.put(Text("weights", self.middle, MARGIN + 6, "weights", 11, "quiet"))
        shade = shades(weights, self.heaviest)
        for row, i in enumerate(order):
            for column, j in enumerate(order):
                x, cell = self.middle + column * CELL, (CELL - 2, 20.0)
                self.stage.put(Grid(f"w.{i}.{j}", x, self.y(row), cell, ((shade[row][column],),)))

    def outputs(self, y: np.ndarray, order: Sequence[int]) -> None:
        shown, _ = strips(y)
        wide = cell_width(shown.shape[1]) * shown.shape[1]
        heading = headed("outputs y", self.written[1])
        self.stage.put(Text("out", self.right, MARGIN + 6, heading, 11, "quiet"))
        for row, n in enumerate(order):
            top = self.y(row)
            self.stage.put(
                vector(f"y.{n}", self.right, top, shown[row], self.most[1], self.written[1]),
                Text(f"of.{n}", self.right + wide + 10, top + 10, self.names[n], 12),
            )
