"""Two heads, digit by digit: split, attend, join, and the projection that mixes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from intently.core.attention import attend
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import Numbers
from intently.show.animate.animation import Animation, destination, told
from intently.show.animate.operands import finite, token_names
from intently.show.animate.stage import (
    CELL,
    HIGH,
    LONG,
    MARGIN,
    CellGrid,
    Colour,
    Numerals,
    Stage,
    Words,
    largest,
    room,
    shades,
    widest,
)
from intently.show.inputs import evaluating, one_item
from intently.show.reading import numbers

TOKENS, WIDE, HEADS = 6, 8, 4
GAP, LINE = 24.0, 34.0
EDGES: tuple[Colour, ...] = ("blue", "accent", "ink", "quiet")
"""The frame of each head."""


class MultiHeadBlock(Protocol):
    """A multi-head layer: `intently.nn.MultiHeadAttention` is one."""

    out_weight: Any
    out_bias: Any

    def _operands(
        self, x: Tensor, context: None, mask: None, cache: None, /
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]: ...


def heads(
    block: MultiHeadBlock,
    x: Numbers,
    *,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Animation:
    """Explain multi-head attention of x (t, c), digit by digit: split → attend → join → projection.

    x may have a batch axis of 1, and be an array or nested lists. ``block`` is an
    `intently.nn.MultiHeadAttention`; convert weights from other code with its
    ``from_weights``. Dropout is off. Returns the story, written to ``save`` if given.

    Raises KindError for other blocks, ArgumentError for more than 6 tokens, 8 numbers or 4 heads,
    for inputs that are not finite and labels that do not fit.

    Source: Vaswani et al. 2017, section 3.2.2.

    >>> import torch
    >>> from intently.nn import MultiHeadAttention
    >>> story = heads(MultiHeadAttention(4, 2), torch.randn(2, 4))
    >>> story.captions[3]
    'Split: columns 0–1 belong to head 0, 2–3 to head 1.'
    """
    path = destination(save)
    if not hasattr(block, "_operands") or not hasattr(block, "out_weight"):
        fix = "bring your weights: MultiHeadAttention.from_weights(…), or "
        fix += "intently.interop.torch.load(module)"
        expected = "an intently.nn.MultiHeadAttention"
        raise build(KindError, "block", expected, type(block).__name__, fix=fix)
    x = one_item(x, "x", 2, block)
    if x.ndim != 2 or not 1 <= len(x) <= TOKENS or x.shape[1] > WIDE:
        raise build(
            ArgumentError,
            "x",
            f"shape (t, c), 1 ≤ t ≤ {TOKENS}, c ≤ {WIDE}",
            shape_of(x),
            "the story shows every number",
            "the weights of a large layer: intently.show.heads(block.attend(x))",
        )
    names = token_names(labels, len(x))
    inputs = finite(numbers(x), "x")
    with torch.no_grad(), evaluating(block):
        facts = _HeadFacts(block, x)
    h, wide, d = len(facts.weights), facts.parts.shape[-1], facts.q.shape[-1]
    sheet = _HeadSheet(names, facts)
    stage = sheet.stage
    sheet.names(0)
    sheet.put("x", sheet.left, 0, inputs, "inputs x")
    stage.scene(f"{len(x)} tokens, each a vector of width {x.shape[1]}.")
    sheet.projected(apart=False)
    stage.scene("Three learned maps give each of them a query, a key and a value.", LONG)
    if h > 1:
        sheet.projected(apart=True)
        columns = [f"{n * d}–{(n + 1) * d - 1}" if d > 1 else f"{n}" for n in range(h)]
        said = ", ".join(f"{one} to head {n}" for n, one in enumerate(columns))
        stage.scene(f"Split: columns {said.replace(' to', ' belong to', 1)}.", LONG)
    for n in range(h):
        sheet.weights(n)
        said = "every query meets every key, divided by √d, then softmax: weights."
        said = "the same with its own columns: different weights." if n else said
        stage.scene(f"Head {n} attends: {said}", LONG)
        sheet.mixture(n)
        stage.scene(f"With them it averages its own values, width {wide}.", LONG)
    end = sheet.join()
    stage.scene(f"Join: side by side again, {h} × {wide} = {h * wide} wide.", LONG)
    sheet.project(end)
    stage.scene("The projection mixes all heads: every output may take from each of them.", LONG)
    count = f"{h} head{'s' * (h > 1)}"
    opening = f"Multi-head attention, {count}: split, attend, join, project."
    return told(stage, title or f"Multi-head attention, {count}", path, opening)


class _HeadFacts:
    """The numbers of every head, (h, t, …), and of the projection."""

    def __init__(self, block: MultiHeadBlock, x: Tensor) -> None:
        q, k, values, settings = block._operands(x[None], None, None, None)
        matrix = attend(q, k, **settings)
        h = matrix.shape[1]
        if h > HEADS:
            raise build(ArgumentError, "block", f"at most {HEADS} heads", h)
        self.q, self.k, self.v = (
            np.repeat(finite(numbers(part[0]), "queries, keys and values"), h // part.shape[1], 0)
            for part in (matrix.problem.q, matrix.problem.k, values)
        )
        self.weights = finite(numbers(matrix[0].dense()), "weights of the block")
        self.parts = finite(numbers(matrix.matmul(values)[0]), "outputs of the block")
        joined = self.parts.transpose(1, 0, 2).reshape(len(x), -1)
        self.map = numbers(block.out_weight).astype(np.float64).T
        bias = 0.0 if block.out_bias is None else numbers(block.out_bias).astype(np.float64)
        self.bias = bias + np.zeros(self.map.shape[1])
        self.y = joined @ self.map + self.bias


class _HeadSheet:
    """Four lines: inputs; queries, keys and values; each head; what is joined and projected."""

    def __init__(self, tokens: Sequence[str], facts: _HeadFacts) -> None:
        self.stage, self.tokens, self.facts = Stage(), tokens, facts
        self.left = MARGIN + widest(tokens, 12.0) + 10
        self.high = HIGH * len(tokens)
        self.lines = [MARGIN + 24 + n * (self.high + LINE + 8) for n in range(4)]
        one = len(tokens) * CELL + facts.parts.shape[-1] * room(facts.parts) + 2 * GAP + 14
        self.starts = [self.left + n * one for n in range(len(facts.weights))]

    def put(
        self,
        key: str,
        x: float,
        line: int,
        values: np.ndarray,
        heading: str = "",
        edge: Colour = "frame",
        like: np.ndarray | None = None,
    ) -> float:
        """Put a matrix on a line, with its heading; return where it ends."""
        every = values if like is None else like
        written, top, cell = Numerals.of(every), self.lines[line], (room(every), HIGH)
        texts = tuple(map(written, values.flat))
        grid = CellGrid(key, x, top, cell, shades(values, largest(every)), texts, edge=edge)
        self.stage.put(grid)
        if heading:
            self.stage.note(f"head.{key}", x, top - 12, written.heading(heading))
        return x + grid.width

    def names(self, line: int) -> None:
        for i, name in enumerate(self.tokens):
            y = self.lines[line] + (i + 0.5) * HIGH
            self.stage.put(Words(f"name.{line}.{i}", self.left - 10, y, name, anchor="end"))

    def projected(self, apart: bool) -> None:
        """Queries, keys and values, the columns of a head framed and apart from the next."""
        self.names(1)
        x, facts = self.left, self.facts
        every = {"queries": facts.q, "keys": facts.k, "values": facts.v}
        for heading, heads in every.items():
            for n, values in enumerate(heads):
                edge = EDGES[n] if apart else "frame"
                key, said = f"{heading[0]}.{n}", "" if n else heading
                x = self.put(key, x, 1, values, said, edge, heads) + 6 * apart
            x += GAP + 6 * (not apart) * len(heads)

    def weights(self, n: int) -> None:
        self.names(2)
        W = self.facts.weights
        self.put(f"weights.{n}", self.starts[n], 2, W[n], f"head {n}: weights", EDGES[n], W)

    def mixture(self, n: int) -> None:
        x, parts = self.starts[n] + len(self.tokens) * CELL + GAP, self.facts.parts
        self.put(f"mix.{n}", x, 2, parts[n], "× values", EDGES[n], parts)

    def join(self) -> float:
        """Put all mixtures below, until they touch; return where they end."""
        self.names(3)
        x, parts = self.left, self.facts.parts
        for n, values in enumerate(parts):
            x = self.put(f"joined.{n}", x, 3, values, "" if n else "joined", EDGES[n], parts)
        return x

    def project(self, end: float) -> None:
        facts, top = self.facts, self.lines[3]
        middle = top + self.high / 2
        x = self.put("w", end + 30, 3, facts.map, "× projection")
        right = self.put("y", x + 30, 3, facts.y, "outputs", "blue")
        for key, at, said in (("times", end + 15, "×"), ("equals", x + 15, "=")):
            self.stage.put(Words(key, at, middle, said, 15, "quiet", "middle"))
        if facts.bias.any():
            said = ", ".join(map(Numerals.of(facts.y), facts.bias))
            place = right, top + self.high + 12
            self.stage.note("bias", *place, f"with the bias {said}", "end")
