"""Weights in blocks of queries and keys, which stand anywhere in a matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from intently.core.matrix.lazy import LazyMatrix
from intently.foundation.arrays import Numbers
from intently.foundation.values import Value


class InBlocks(LazyMatrix, Value):
    """Weights (…, h, n, u, w) of n blocks; ``rows`` (n, u) and ``columns`` (n, w) are their places.

    The matrix has t rows and s columns; places of -1 stand for padding. What stands twice in one
    place is added.
    """

    def __init__(self, weights: Tensor, rows: Tensor, columns: Tensor, t: int, s: int) -> None:
        super().__init__(weights, rows, columns, t, s)
        self.weights = self._like = weights
        self.rows, self.columns, self.t, self.s = rows, columns, t, s

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.weights.shape[:-3], self.t, self.s)

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        (down, t), (across, s) = self._where(rows, self.t), self._where(cols, self.s)
        r, c = down[self.rows], across[self.columns]
        some = (r >= 0).any(-1)
        w, r, c = self.weights[..., some, :, :], r[some], c[some]
        here = (r >= 0)[:, :, None] & (c >= 0)[:, None]
        at = (r.clamp_min(0)[:, :, None] * s + c.clamp_min(0)[:, None]).flatten()
        out = w.new_zeros(*w.shape[:-3], t * s)
        return out.index_add_(-1, at, (w * here).flatten(-3)).unflatten(-1, (t, s))

    def matmul(self, v: Tensor | Numbers) -> Tensor:
        """Y (…, t, e) = weights @ v (…, s, e)."""
        v, real = self._operand(v), (self.columns >= 0)[..., None]
        mixed = self.weights @ (v[..., self.columns.clamp_min(0), :] * real)
        out = mixed.new_zeros(*mixed.shape[:-3], self.t + 1, v.shape[-1])
        at = torch.where(self.rows < 0, self.t, self.rows).flatten()
        return out.index_add_(-2, at, mixed.flatten(-3, -2))[..., : self.t, :]

    def _where(self, some: Tensor | None, n: int) -> tuple[Tensor, int]:
        """For each of n places and -1, its index in ``some``, -1 for none; and their number."""
        some = torch.arange(n, device=self.device) if some is None else some
        found = torch.full((n + 1,), -1, device=self.device)
        found[some] = torch.arange(len(some), device=self.device)
        return found, len(some)

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        return InBlocks(self.weights[index], self.rows, self.columns, self.t, self.s)

    def _to(self, device: torch.device) -> LazyMatrix:
        return self.replaced(lambda x: x.to(device))
