"""Permuting the inputs only permutes the outputs: attention ignores order; positions repair it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from intently.core.matrix import LazyMatrix
from intently.core.positions import sinusoidal
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import Numbers
from intently.show.animate.animation import Animation, destination, told
from intently.show.animate.operands import finite, token_names
from intently.show.animate.stage import (
    LONG,
    MARGIN,
    SHORT,
    CellGrid,
    Colour,
    Stage,
    Words,
    cell_width,
    headed,
    largest,
    number,
    numerals,
    shades,
    strips,
    vector,
    widest,
    within,
)
from intently.show.inputs import as_numbers, evaluating, one_item, one_text
from intently.show.reading import numbers

LARGEST = 16
ROW, CELL = 26.0, 26.0
GAP = 34.0
WORD, TURN = 24.0, 26.0
"""The height of a word of the sentence, and how far above and below the others it turns."""


class AttendingBlock(Protocol):
    """A layer that attends: `intently.nn.AttentionHead` and `MultiHeadAttention` are some."""

    def __call__(self, x: Tensor, /) -> Tensor:
        """Return y (1, t, c) of x (1, t, c)."""
        ...

    def attend(self, x: Tensor, /) -> LazyMatrix:
        """Return the weights (1, h, t, t) or (1, t, t)."""
        ...


def permutation(
    block: AttendingBlock,
    x: Numbers,
    *,
    order: Sequence[int] | None = None,
    positions: Numbers | None = None,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Animation:
    """Explain how the outputs of a block change when its inputs x (t, c) are permuted.

    x may have a batch axis of 1, and be an array or nested lists. The new order, ``order`` (the
    first and the last change places unless given), goes through the block too, without dropout, and
    the story shows its outputs. Without positions and mask, rows of the output and rows and columns
    of the matrix (mean of heads) only change places; then the same is done with ``positions``
    (t, c), `intently.sinusoidal` unless given, added to the inputs. Of a block with positions or a
    mask of its own, the story reports by how much the outputs differ. Returns the story, written to
    ``save`` if given.

    Raises ArgumentError for more than 16 tokens, inputs that are not finite, labels or positions
    that do not fit, and an ``order`` that is not a permutation; KindError for a block that does not
    attend.

    Source: Lee et al. 2019, "Set Transformer", section 2; Vaswani et al. 2017, section 3.5.

    >>> import torch
    >>> from intently.nn import AttentionHead
    >>> story = permutation(AttentionHead(8, 4), torch.randn(3, 8), labels=("a", "b", "c"))
    >>> story.captions[2]
    'a and c change places around ‘b’: c b a.'
    """
    path = destination(save)
    if not callable(block) or not callable(getattr(block, "attend", None)):
        fix = "bring your weights: intently.nn.MultiHeadAttention.from_weights(…)"
        expected = "a layer with forward and attend"
        raise build(KindError, "block", expected, type(block).__name__, fix=fix)
    x = one_item(x, "x", 2, block)
    if x.ndim != 2 or not 2 <= len(x) <= LARGEST:
        raise build(ArgumentError, "x", f"shape (t, c), 2 ≤ t ≤ {LARGEST}", shape_of(x))
    t, c = x.shape
    new = [t - 1, *range(1, t - 1), 0] if order is None else list(order)
    if sorted(new) != list(range(t)):
        raise build(ArgumentError, "order", f"each number from 0 to {t - 1} once", repr(order))
    names = token_names(labels, t)
    finite(numbers(x), "x")
    if positions is None:
        places = sinusoidal(t, c + c % 2, device=x.device, dtype=x.dtype)[:, :c]
    else:
        places = as_numbers(positions, "positions", block)
        if places.shape != x.shape:
            raise build(ArgumentError, "positions", f"shape (t={t}, c={c})", shape_of(places))
    with torch.no_grad(), evaluating(block):
        runs = [_BlockRun(block, given) for given in (x, x[new], x + places, x[new] + places)]
    sheet = _PermutationSheet(names, new, runs)
    stage, old = sheet.stage, range(t)
    sheet.sentence(old)
    sheet.inputs(runs[0], old, "inputs x")
    sheet.outputs(runs[0], old)
    words = f"{' '.join(names)}: of every word a vector goes in, and a mixture comes out."
    stage.scene(words, LONG)
    sheet.turn()
    stage.scene(f"{sheet.moving}: {' '.join(names[n] for n in new)}.", SHORT)
    sheet.sentence(new)
    sheet.inputs(runs[1], new, "inputs x")
    stage.scene(stage.scenes[-1].caption, LONG)
    sheet.outputs(runs[1], new)
    apart = sheet.apart(runs[0], runs[1])
    if apart > 1e-4 * max(largest(runs[0].y), 1e-30):
        stage.change("out", colour="accent")
        said = f"Not the same rows: they differ by up to {apart:.2g}. This block knows the order:"
        stage.scene(f"{said} it has positions or a mask.", LONG)
        opening = "The order of the words changes what comes out: this block knows it."
        return told(stage, title or "A block that knows the order", path, opening)
    said = f"The same rows in another order{within(apart)}: weights and outputs go along."
    stage.scene(f"{said} Nobody knows who came first.", LONG)
    stage.drop("changed")
    sheet.sentence(old)
    sheet.inputs(runs[2], old, "x + positions")
    sheet.outputs(runs[2], old)
    stage.scene("Positions repair it: a vector of its own is added at each place.", LONG)
    sheet.turn()
    stage.scene(f"{sheet.moving} again, but the positions stay.", SHORT)
    sheet.sentence(new)
    sheet.inputs(runs[3], new, "x + positions")
    sheet.outputs(runs[3], new)
    apart = sheet.apart(runs[2], runs[3])
    said = f"Now outputs differ, by up to {number(apart)}: the block can tell the orders apart."
    stage.scene(said, LONG)
    opening = "With positions, another order gives other outputs; without them, the same ones."
    return told(stage, title or "Attention needs positions to know the order", path, opening)


class _BlockRun:
    """What goes into a block (t, c), its weights (t, t), mean of heads, and its outputs."""

    def __init__(self, block: AttendingBlock, x: Tensor) -> None:
        matrix = one_text(block.attend(x[None]))
        while matrix.ndim > 2:
            matrix = matrix[0] if matrix.shape[0] == 1 else matrix.mean_heads()
        self.x = finite(numbers(x), "x")
        self.weights = finite(numbers(matrix.dense()), "weights of the block")
        self.y = finite(numbers(block(x[None])[0]), "outputs of the block")


class _VectorLook:
    """How vectors are drawn in all runs: their cells, darkest number, format and heading."""

    def __init__(self, vectors: Sequence[np.ndarray], heading: str) -> None:
        every = [strips(x)[0] for x in vectors]
        self.most, self.written = largest(*every), numerals(*every)
        self.cell = cell_width(*every)
        widths = self.cell * every[0].shape[1], widest((headed(heading, self.written),), 11)
        self.wide = max(widths)

    def draw(
        self, key: str, x: float, y: float, values: np.ndarray, edge: Colour = "frame"
    ) -> CellGrid:
        return vector(key, x, y, values, self.most, self.written, self.cell, edge=edge)


class _PermutationSheet:
    """The sentence above; inputs, weights and outputs below, one row for each word."""

    def __init__(self, names: Sequence[str], new: Sequence[int], runs: Sequence[_BlockRun]) -> None:
        self.stage, self.names, self.new = Stage(), names, new
        self.pivot, self.moving = _pivot(names, new)
        self.given = _VectorLook([run.x for run in runs], "x + positions")
        self.made = _VectorLook([run.y for run in runs], "outputs")
        self.heaviest = max(float(run.weights.max()) for run in runs)
        self.wide = [widest((name,), 13.0) + 16 for name in names]
        self.left = MARGIN + widest(names, 12.0) + 10
        self.middle = self.left + self.given.wide + GAP
        self.right = self.middle + len(names) * CELL + GAP
        self.end = self.right + self.made.wide + 14
        self.top = MARGIN + WORD + 2 * TURN + 20

    def y(self, row: int) -> float:
        return self.top + row * ROW

    def _places(self, order: Sequence[int]) -> dict[int, float]:
        """Return where each word of the sentence begins."""
        places, x = {}, self.left
        for n in order:
            places[n] = x
            x += self.wide[n] + 10
        return places

    def _edge(self, n: int) -> Colour:
        return "accent" if n == self.pivot else "frame"

    def _word(self, n: int, x: float, down: float = 0.0) -> None:
        box, y = (self.wide[n], WORD), MARGIN + TURN + down
        shade = 0.25 if self.new[n] != n else 0.0
        word = CellGrid(f"word.{n}", x, y, box, ((shade,),), (self.names[n],), 13, self._edge(n))
        self.stage.put(word)

    def sentence(self, order: Sequence[int]) -> None:
        """Write the words in an order."""
        for n, x in self._places(order).items():
            self._word(n, x)

    def turn(self) -> None:
        """Half a turn: words on their way to the right go above, those to the left below."""
        old, new = self._places(range(len(self.new))), self._places(self.new)
        for n in old:
            way = np.sign(self.new.index(n) - n)
            self._word(n, (old[n] + new[n]) / 2, -TURN * way)

    def inputs(self, run: _BlockRun, order: Sequence[int], heading: str) -> None:
        shown, note = strips(run.x)
        heading = headed(heading, self.given.written) + note
        self.stage.note("in", self.left, self.top - 14, heading)
        for row, n in enumerate(order):
            y = self.y(row)
            self.stage.put(
                Words(f"name.{n}", self.left - 10, y + 10, self.names[n], anchor="end"),
                self.given.draw(f"x.{n}", self.left, y, shown[row]),
            )

    def outputs(self, run: _BlockRun, order: Sequence[int]) -> None:
        """Weights and outputs; each weight keeps its key, (query token, key token)."""
        self.stage.note("weights", self.middle, self.top - 14, "weights")
        shade = shades(run.weights, self.heaviest)
        for row, i in enumerate(order):
            for column, j in enumerate(order):
                x, cell = self.middle + column * CELL, (CELL - 2, 20.0)
                self.stage.put(
                    CellGrid(f"w.{i}.{j}", x, self.y(row), cell, ((shade[row][column],),))
                )
        heading = headed("outputs", self.made.written)
        self.stage.note("out", self.right, self.top - 14, heading)
        shown, _ = strips(run.y)
        for row, n in enumerate(order):
            place = self.right, self.y(row)
            self.stage.put(self.made.draw(f"y.{n}", *place, shown[row], self._edge(n)))

    def apart(self, before: _BlockRun, after: _BlockRun) -> float:
        """Write after every output by how much it changed, at most; return the most of all."""
        self.stage.note("changed", self.end, self.top - 14, "changed by")
        changes = np.abs(after.y - before.y[self.new]).max(-1)
        for row, (n, most) in enumerate(zip(self.new, map(float, changes))):
            colour = "accent" if most >= 0.005 else "quiet"
            place = self.end, self.y(row) + 10
            self.stage.put(Words(f"changed.{n}", *place, number(most), 12, colour))
        return float(changes.max())


def _pivot(names: Sequence[str], new: Sequence[int]) -> tuple[int | None, str]:
    """Return the word around which two others turn, if there is one, and what moves."""
    moved = [n for n, m in enumerate(new) if n != m]
    if len(moved) != 2:
        return None, "They change places"
    first, last = moved
    said = f"{names[first]} and {names[last]} change places"
    if last - first != 2:
        return None, said
    return first + 1, f"{said} around ‘{names[first + 1]}’"
