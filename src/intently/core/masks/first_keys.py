"""Masks of the first keys: prefixes and padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from intently.core.masks.closed_forms import Queries, Rows, edges, states
from intently.core.masks.geometry import (
    Cut,
    Geometry,
    Integers,
    copied,
    cut_left,
    integers,
    lengths_may_change,
    pick,
    written,
)
from intently.core.masks.mask import Allowed, Mask, as_booleans, zeros_and_ones
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import hidden, plain
from intently.foundation.checks import whole_number
from intently.foundation.field_names import answered


class First(Mask):
    """The first n keys, n an int or one per batch row."""

    per_key = True
    name = "n"

    def __init__(self, n: int | Tensor) -> None:
        super().__init__(n)
        self.n = n

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return cols[None, :] < self.counts(g)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        n = self.n
        return j < (pick(g, n, lead[: n.ndim]) if isinstance(n, Tensor) else n)

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        e, n = edges(g, rows, cols), self.counts(g)
        return states(g, rows, cols, e.left >= n.max(), e.right < n.min())

    def seen(self, g: Geometry) -> Tensor | None:
        return None if g.t and self.allows_all(g) else super().seen(g)

    def queries(self, g: Geometry) -> Rows:
        keys = torch.arange(g.s, device=g.device)
        last = torch.where(keys < self.counts(g)[..., 0], g.t - 1, -1)
        return [Queries(torch.zeros_like(last), last)]

    def check(self, g: Geometry) -> None:
        if isinstance(self.n, Tensor):
            g.align(self.n, self.name)

    def counts(self, g: Geometry) -> Tensor:
        """How many keys are seen, (…, 1, 1)."""
        if isinstance(self.n, Tensor) and self.n.numel():
            return g.align(self.n, self.name)
        return torch.tensor(0 if isinstance(self.n, Tensor) else self.n, device=g.device)[
            None, None
        ]

    def _most(self) -> int:
        return int(self.n.max()) if isinstance(self.n, Tensor) and self.n.numel() else 0


class _Prefix(First):
    def allows_all(self, g: Geometry) -> bool:
        return isinstance(self.n, int) and not lengths_may_change() and self.n >= g.s

    def extent(self) -> int:
        n = self._most() if isinstance(self.n, Tensor) else self.n
        return min(1024, max(16, 2 * n))

    def __repr__(self) -> str:
        return f"prefix({written(self.n)})"


class Padding(First):
    """The first ``n`` (b,) keys of each row."""

    name = "lengths"

    def size(self) -> tuple[int, int] | None:
        return None if self._most() < 1 else (self._most(), self._most())

    def __repr__(self) -> str:
        return f"padding({written(self.n)})"


class RealKeys(Allowed):
    """Booleans (b, s): the keys of each row that are real, not padding."""

    per_key = True

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return pick(g, self.tensor, (*lead[: self.tensor.ndim - 1], j))

    def check(self, g: Geometry) -> None:
        if self.tensor.shape[-1] != g.s:
            expected = f"shape (b, s={g.s}), one entry for each key"
            raise build(ArgumentError, "padding", expected, shape_of(self.tensor))
        if g.s:
            g.align(self.tensor[..., 0], "padding")

    def queries(self, g: Geometry) -> Rows:
        last = torch.where(self.laid(g)[..., 0, :], g.t - 1, -1)
        return [Queries(torch.zeros_like(last), last)]

    def part(self, cut: Cut, g: Geometry) -> Mask:
        return RealKeys(cut_left(self.tensor, cut[: self.tensor.ndim - 1]))

    def lead(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[:-1])

    def size(self) -> tuple[int, int] | None:
        s = self.tensor.shape[-1]
        return (s, s) if s else None

    def laid(self, g: Geometry) -> Tensor:
        x = self.tensor.to(g.device)
        ones = (1,) * (len(g.lead) - x.ndim + 2)
        return x.reshape(*x.shape[:-1], *ones, x.shape[-1])

    def __repr__(self) -> str:
        return f"padding({'×'.join(map(str, self.tensor.shape))} booleans)"


@answered
def prefix(n: int | Integers) -> Mask:
    """Every query sees the first n keys; n is an int, or integers (b,), one per batch row.

    ::

        causal() | prefix(2), t=s=4   █ █ · ·
                                      █ █ · ·
                                      █ █ █ ·
                                      █ █ █ █
    """
    if isinstance(n, (Tensor, list, tuple, np.ndarray)):
        return _Prefix(integers(n, "n"))
    return _Prefix(whole_number(n, "n", 0))


@answered
def padding(lengths: Integers | Sequence[Sequence[int]]) -> Mask:
    """Every query of batch row i sees the first ``lengths[i]`` keys; lengths (b,), a tensor or a
    list.

    ::

        padding([2]), t=2, s=4   █ █ · ·
                                 █ █ · ·

    Or booleans (b, s), True for the real keys of each row, wherever the padding is: a tokenizer's
    ``attention_mask`` is ``it.padding(attention_mask.bool())``.

    ::

        padding([[False, True, True]]), t=2, s=3   · █ █
                                                   · █ █

    A row without keys attends to nothing, so its result is exactly zero (contract 4). Raises
    `KindError` for numbers that are neither integers nor booleans, and for an integer matrix of 0
    and 1, which no one means as lengths.
    """
    expected = "integer lengths (b,), or booleans (b, s)"
    x = lengths if isinstance(lengths, Tensor) else copied(lengths, "lengths", expected)
    if not plain(x):
        raise hidden(x, "lengths")
    if x.dtype is not torch.bool:
        if x.ndim > 1 and x.shape[-1] > 1 and zeros_and_ones(x):
            got = f"zeros and ones {shape_of(x)}"
            cause = "it looks like the attention_mask of a tokenizer"
            fix = f"pass it.padding({as_booleans(lengths, 'mask')})"
            raise build(KindError, "lengths", expected, got, cause, fix)
        return Padding(integers(lengths, "lengths"))
    if x.ndim < 2:
        cause, fix = "one text is a batch of 1", "pass it.padding(m[None])"
        raise build(ArgumentError, "lengths", expected, f"booleans {shape_of(x)}", cause, fix)
    return RealKeys(x)
