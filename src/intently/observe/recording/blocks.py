"""Weights in blocks of queries and keys, which stand anywhere in a matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from intently.core.biases import Bias
from intently.core.masks import Geometry
from intently.core.matrix import LazyMatrix
from intently.foundation.arrays import Numbers


class InBlocks(Bias):
    """Weights (…, h, n, u, w) of n blocks; ``rows`` (n, u) and ``columns`` (n, w) are their places.

    The matrix has t rows and s columns; places of -1 stand for padding. What stands twice in one
    place is added.
    """

    def __init__(self, weights: Tensor, rows: Tensor, columns: Tensor, t: int, s: int) -> None:
        super().__init__(weights, rows, columns, t, s)
        self.weights, self.rows, self.columns, self.t, self.s = weights, rows, columns, t, s

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The weights (…, rows, cols)."""
        down, across = (self._where(x, n) for x, n in ((rows, self.t), (cols, self.s)))
        r, c = down[self.rows], across[self.columns]
        some = (r >= 0).any(-1)
        w, r, c = self.weights[..., some, :, :], r[some], c[some]
        here = (r >= 0)[:, :, None] & (c >= 0)[:, None]
        at = (r.clamp_min(0)[:, :, None] * len(cols) + c.clamp_min(0)[:, None]).flatten()
        out = w.new_zeros(*w.shape[:-3], len(rows) * len(cols))
        out.index_add_(-1, at, (w * here).flatten(-3))
        out = out.unflatten(-1, (len(rows), len(cols)))
        return out if dtype is None else out.to(dtype)

    def times(self, v: Tensor) -> Tensor:
        """Y (…, h, t, e) of values (…, h, s, e)."""
        real = (self.columns >= 0)[..., None]
        mixed = self.weights @ (v[..., self.columns.clamp_min(0), :] * real)
        out = mixed.new_zeros(*mixed.shape[:-3], self.t + 1, v.shape[-1])
        at = torch.where(self.rows < 0, self.t, self.rows).flatten()
        return out.index_add_(-2, at, mixed.flatten(-3, -2))[..., : self.t, :]

    def _where(self, some: Tensor, n: int) -> Tensor:
        """For each place, -1 included, its index in ``some``; -1 for none."""
        found = torch.full((n + 1,), -1, device=some.device)
        found[some] = torch.arange(len(some), device=some.device)
        return found


class Given(LazyMatrix):
    """A matrix of weights in blocks."""

    def __init__(self, weights: InBlocks) -> None:
        self._weights = weights
        self._like, self._cast = weights.weights, False

    @property
    def shape(self) -> tuple[int, ...]:
        w = self._weights
        return (*w.weights.shape[:-3], w.t, w.s)

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        w = self._weights
        down = torch.arange(w.t, device=self.device) if rows is None else rows
        across = torch.arange(w.s, device=self.device) if cols is None else cols
        return w.tile(Geometry(self.shape[:-2], w.t, w.s, self.device), down, across)

    def matmul(self, v: Tensor | Numbers) -> Tensor:
        """Y (…, t, e) = weights @ v (…, s, e)."""
        return self._weights.times(self._operand(v))

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        w = self._weights
        return Given(InBlocks(w.weights[index], w.rows, w.columns, w.t, w.s))

    def _to(self, device: torch.device) -> LazyMatrix:
        return Given(self._weights.replaced(lambda x: x.to(device)))
