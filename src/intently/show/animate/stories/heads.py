"""One head, many heads, their concatenation, and the projection that mixes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import Numbers
from intently.matrix import LazyMatrix
from intently.show.animate.animation import Animation, destination, told
from intently.show.animate.operands import finite, token_names, without_dropout
from intently.show.animate.shapes import Grid, Text
from intently.show.animate.stage import LONG, MARGIN, MOST, Stage, shades, strips, widest
from intently.show.given import one_item
from intently.show.reading import numbers

TOKENS, HEADS = 24, 16
WIDE = 860.0
HIGH = 11.0


class Block(Protocol):
    """A multi-head layer: `intently.modules.MultiHeadAttention` is one."""

    out_weight: Any
    out_bias: Any

    def _matrix_and_values(
        self, x: Tensor, context: None, mask: None, cache: None, /
    ) -> tuple[LazyMatrix, Tensor]: ...


def heads(
    block: Block,
    x: Numbers,
    *,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Animation:
    """Explain multi-head attention of x (t, c): one head → many → concatenation → projection.

    x may have a batch axis of 1, and be an array or nested lists.
    ``block`` is an `intently.modules.MultiHeadAttention`; convert weights from other code with its
    ``from_weights``, and PyTorch modules with ``intently.interop.torch.load``. Vectors wider than
    96 are drawn as means of neighbours; dropout is off. Returns the story, written to ``save`` if
    given.

    Raises KindError for other blocks, ArgumentError for more than 24 tokens or 16 heads, for inputs
    that are not finite and labels that do not fit.

    Source: Vaswani et al. 2017, section 3.2.2.

    >>> import torch
    >>> from intently.modules import MultiHeadAttention
    >>> story = heads(MultiHeadAttention(8, 2), torch.randn(3, 8))
    >>> story.captions[-1]
    'The projection mixes all heads: every output may take from each of them.'
    """
    path = destination(save)
    if not hasattr(block, "_matrix_and_values") or not hasattr(block, "out_weight"):
        raise build(
            KindError,
            "block",
            "an intently.modules.MultiHeadAttention",
            type(block).__name__,
            fix="bring your weights: MultiHeadAttention.from_weights(…), or "
            "intently.interop.torch.load(module)",
        )
    x = one_item(x, "x", 2, block)
    if x.ndim != 2 or not 1 <= len(x) <= TOKENS:
        raise build(ArgumentError, "x", f"shape (t, c), 1 ≤ t ≤ {TOKENS}", shape_of(x))
    names = token_names(labels, len(x))
    inputs = finite(numbers(x), "x")
    with torch.no_grad(), without_dropout(block):
        matrix, values = block._matrix_and_values(x[None], None, None, None)
        h = matrix.shape[1]
        if h > HEADS:
            raise build(
                ArgumentError,
                "block",
                f"at most {HEADS} heads",
                h,
                fix="draw all of them with intently.show.heads",
            )
        found = matrix[0].matmul(values[0])
        weights = finite(numbers(matrix[0].dense()), "weights of the block")
        parts = finite(numbers(found), "outputs of the block")
        weight = numbers(block.out_weight).astype(np.float64)
        bias = 0.0 if block.out_bias is None else numbers(block.out_bias).astype(np.float64)
    joined = parts.transpose(1, 0, 2).reshape(len(x), -1)
    sheet = _Sheet(names, inputs, weights, parts)
    stage = sheet.stage
    sheet.inputs()
    stage.scene(f"{len(x)} tokens, each a vector of width {x.shape[1]}{sheet.note}.")
    sheet.matrices([0])
    stage.scene("One head: its own queries (rows), keys (columns), and so weights.", LONG)
    sheet.mixtures([0])
    stage.scene(f"With them it averages its own values, width {parts.shape[-1]}.", LONG)
    if h > 1:
        sheet.matrices(range(1, h))
        stage.scene(f"Many heads: {h} times the same, each with other weights.", LONG)
        sheet.mixtures(range(1, h))
        stage.scene("Every head gives its own mixture of values.")
    sheet.join()
    said = f"Concatenation: side by side, {h} × {parts.shape[-1]} = {joined.shape[1]} wide."
    stage.scene(said, LONG)
    sheet.project(weight, joined @ weight.T + bias)
    stage.scene("The projection mixes all heads: every output may take from each of them.", LONG)
    return told(stage, title or f"Multi-head attention, {h} head{'s' * (h > 1)}", path)


class _Sheet:
    """Heads in a row, weights above, mixtures below; then their concatenation and projection."""

    def __init__(
        self, names: Sequence[str], x: np.ndarray, weights: np.ndarray, parts: np.ndarray
    ) -> None:
        self.stage = Stage()
        self.names, self.weights = names, weights
        self.x, self.note = strips(x)
        h, t, e = parts.shape
        cells = max(1, min(e, MOST // h))
        self.parts = np.stack([strips(part, cells)[0] for part in parts])
        self.most = float(np.abs(self.parts).max(initial=0.0))
        self.line = max(HIGH, min(16.0, 190 / t))
        self.left = MARGIN + widest(names, 11.0) + 8
        self.first = self.left + 150 + 46
        each = (WIDE - self.first) / h
        self.side = min(self.line * t, each - 10)
        self.each = min(each, max(self.side, 40) + 26)
        self.top = MARGIN + 24
        self.below = self.top + self.line * t + 34
        self.last = self.below + self.line * t + 58

    def _tokens(self, key: str, top: float) -> None:
        for i, name in enumerate(self.names):
            y = top + (i + 0.5) * self.line
            self.stage.put(Text(f"{key}.{i}", self.left - 8, y, name, 11, "ink", "end"))

    def inputs(self) -> None:
        shaded = shades(self.x, float(np.abs(self.x).max(initial=0.0)))
        cell = 150 / self.x.shape[1], self.line
        self._tokens("token", self.top)
        self.stage.put(
            Text("head.x", self.left, self.top - 12, "inputs", 11, "quiet"),
            Grid("x", self.left, self.top, cell, shaded),
        )

    def matrices(self, which: Sequence[int]) -> None:
        cell, largest = (self.side / len(self.names), self.line), float(self.weights.max())
        for n in which:
            x = self.first + n * self.each
            self.stage.put(
                Text(f"head.{n}", x, self.top - 12, f"head {n}", 11, "quiet"),
                Grid(f"weights.{n}", x, self.top, cell, shades(self.weights[n], largest)),
            )

    def mixtures(self, which: Sequence[int]) -> None:
        cell = self.side / self.parts.shape[-1], self.line
        for n in which:
            x, shaded = self.first + n * self.each, shades(self.parts[n], self.most)
            self.stage.put(Grid(f"mix.{n}", x, self.below, cell, shaded))
        middle = self.below + self.line * len(self.names) / 2
        self.stage.put(
            Text("averages", self.first - 12, middle, "weights × values", 11, "quiet", "end")
        )

    def join(self) -> None:
        """Move all mixtures together below, until they touch."""
        h, _, cells = self.parts.shape
        wide = min(14.0, 270 / (h * cells))
        self._tokens("row", self.last)
        heading = Text("head.joined", self.left, self.last - 12, "concatenated", 11, "quiet")
        self.stage.put(heading)
        for n, values in enumerate(self.parts):
            x, shaded = self.left + n * cells * wide, shades(values, self.most)
            self.stage.put(Grid(f"joined.{n}", x, self.last, (wide, self.line), shaded))
        self.right = self.left + h * cells * wide

    def project(self, weight: np.ndarray, y: np.ndarray) -> None:
        out = strips(y, 48)[0]
        narrow, _ = strips(weight, 48)
        shown, _ = strips(narrow.T, 48)
        high = self.line * len(self.names)
        middle, top = self.last + high / 2, self.last - 12
        x, side = self.right + 34, 130.0
        right = x + side + 34
        cell = side / shown.shape[1], max(high, 110.0) / len(shown)
        shaded = shades(out, float(np.abs(out).max(initial=0.0)))
        self.stage.put(
            Text("times", self.right + 17, middle, "×", 15, "quiet", "middle"),
            Text("head.w", x, top, "projection", 11, "quiet"),
            Grid("w", x, self.last, cell, shades(shown, float(np.abs(shown).max()))),
            Text("equals", x + side + 17, middle, "=", 15, "quiet", "middle"),
            Text("head.y", right, top, "outputs", 11, "quiet"),
            Grid("y", right, self.last, (150 / out.shape[1], self.line), shaded, edge="blue"),
        )
