"""Weights made of others: rows taken from another matrix, rows raised to a power."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from intently.core.kernels.operands import no_autocast
from intently.core.matrix.lazy import Derived, LazyMatrix
from intently.foundation.arrays import Numbers


class Chosen(Derived):
    """The rows ``over`` (…, t) of ``other``, and the rows of ``matrix`` elsewhere."""

    def __init__(self, matrix: LazyMatrix, other: LazyMatrix, over: Tensor) -> None:
        super().__init__(matrix)
        self.other, self.over = other, over.expand(matrix.shape[:-1])

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        over = self.over if rows is None else self.over.index_select(-1, rows)
        ours, theirs = (x.tile(rows, cols) for x in (self.matrix, self.other))
        return torch.where(over[..., None], theirs.to(ours.dtype), ours)

    def matmul(self, v: Tensor | Numbers) -> Tensor:
        """Y (…, t, e) = weights @ v (…, s, e)."""
        ours, theirs = self.matrix.matmul(v), self.other.matmul(v)
        return torch.where(self.over[..., None], theirs.to(ours.dtype), ours)

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        over = self.over[index]
        if bool(over.all()):
            return self.other[index]
        return Chosen(self.matrix[index], self.other[index], over)

    def _to(self, device: torch.device) -> LazyMatrix:
        return Chosen(self.matrix.to(device), self.other.to(device), self.over.to(device))


class Sharpened(Derived):
    """Weights w as w^power / (Σ w^power + r^power); r is the rest, which sinks take."""

    def __init__(self, matrix: LazyMatrix, power: float, sinks: bool) -> None:
        super().__init__(matrix)
        self.power, self.sinks = power, sinks

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        w = self.matrix.tile(rows)
        top = w.detach().amax(-1, keepdim=True)
        top = torch.where(top > 0, top, 1)
        raised = torch.where(w > 0, (w / top).clamp_min(torch.finfo(w.dtype).tiny), 1) ** self.power
        raised = torch.where(w > 0, raised, 0)
        whole = raised.sum(-1, keepdim=True)
        if self.sinks:
            whole = whole + ((1 - w.sum(-1, keepdim=True)).clamp_min(0) / top) ** self.power
        found = raised / torch.where(whole > 0, whole, 1)
        return found if cols is None else found.index_select(-1, cols)

    def matmul(self, v: Tensor | Numbers) -> Tensor:
        """Y (…, t, e) = weights @ v (…, s, e), some rows at a time."""
        return in_blocks(self, v, self.tile)

    def _parts(self, change: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
        return self.power, self.sinks


def in_blocks(matrix: LazyMatrix, v: Tensor | Numbers, tile: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the product of rows that ``tile`` computes with v (…, s, e), some rows at a time."""
    v = matrix._operand(v)
    h, own = matrix.shape[:-2][-1:], v.shape[:-2][-1:]
    if h and own and own[0] not in (1, h[0]):
        v = v.repeat_interleave(h[0] // own[0], -3)
    rows = torch.arange(matrix.shape[-2], device=v.device)
    with no_autocast(v.device):
        step = max(1, 2**22 // max(1, matrix._row_size()))
        return torch.cat([tile(some) @ v for some in rows.split(step)], -2)
