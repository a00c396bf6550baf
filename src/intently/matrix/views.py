"""Matrices made of one other thing: a dense tensor, the transpose, the mean of heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from intently.errors import ArgumentError, build, shape_of
from intently.foundation.arrays import Numbers, as_tensor
from intently.matrix.lazy import Labels, LazyMatrix, in_autocast, no_autocast


class Dense(LazyMatrix):
    """Weights (…, t, s) that somebody already has, with the same interface.

    A floating-point tensor is used as it is; an array, a list or integers are copied, as `attend`
    does. Raises `KindError` for what holds no numbers, `ArgumentError` for fewer than two axes.

    >>> Dense([[0.5, 0.5], [0, 1]]).entropy()
    tensor([0.6931, 0.0000])
    """

    def __init__(self, weights: Tensor | Numbers, labels: Labels = (None, None)) -> None:
        weights = as_tensor(weights, "weights")
        if weights.ndim < 2:
            raise build(ArgumentError, "weights", "numbers (…, t, s)", shape_of(weights))
        self.weights = weights
        self._cast = in_autocast(weights.device)
        if labels != (None, None):
            self.labels = self.label(*labels).labels

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weights.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.dtype

    @property
    def device(self) -> torch.device:
        return self.weights.device

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        w = self.weights if rows is None else self.weights.index_select(-2, rows)
        return w if cols is None else w.index_select(-1, cols)

    def matmul(self, v: Tensor | Numbers) -> Tensor:
        """Y (…, t, e) = weights @ v (…, s, e)."""
        v = self._operand(v)
        with no_autocast(self.device):
            return self.weights @ v

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        return Dense(self.weights[index])

    def _to(self, device: torch.device) -> LazyMatrix:
        return Dense(self.weights.to(device))


class Transposed(LazyMatrix):
    """Aᵀ, of shape (…, s, t): who looks at each key."""

    def __init__(self, matrix: LazyMatrix) -> None:
        self.matrix, self._cast = matrix, matrix._cast
        self.labels = (matrix.labels[1], matrix.labels[0])

    @property
    def shape(self) -> tuple[int, ...]:
        *lead, t, s = self.matrix.shape
        return (*lead, s, t)

    @property
    def dtype(self) -> torch.dtype:
        return self.matrix.dtype

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    @property
    def mT(self) -> LazyMatrix:  # noqa: N802
        """The matrix itself."""
        return self.matrix.label(self.labels[1], self.labels[0])

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        if cols is None and rows is not None:
            return self.matrix._columns(rows).mT
        return self.matrix.tile(cols, rows).mT

    def matmul(self, v: Tensor | Numbers) -> Tensor:
        """Aᵀ u (…, s, e) for u (…, t, e), summed over blocks of rows."""
        return self.summed(self._cleared(self._operand(v))).to(self.dtype)

    def _allow(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor | None:
        allow = self.matrix._allow(cols, rows)
        return None if allow is None else allow.mT

    def summed(self, v: Tensor, nan: bool = True) -> Tensor:
        """Aᵀ u in the dtype that is summed in, float32 for the half types, for u in any dtype.

        Without ``nan`` weights that are NaN count as 0.
        """
        lead = torch.broadcast_shapes(self.shape[:-2], v.shape[:-2])
        wide = torch.promote_types(self.dtype, torch.float32)
        out = v.new_zeros((*lead, self.shape[-2], v.shape[-1]), dtype=wide)
        v = v.to(wide).expand(*lead, *v.shape[-2:])
        with no_autocast(self.device):
            for block in self.matrix._blocks():
                own = zip(block.lead, self.shape)
                cut = (..., *(slice(None) if n == 1 else c for c, n in own))
                weights = block.weights if nan else block.weights.nan_to_num(0.0)
                part = weights.mT.to(wide) @ v[(*cut, block.rows, slice(None))]
                out[(*cut, block.cols, slice(None))] += part
        return out

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        return Transposed(self.matrix[index])

    def _to(self, device: torch.device) -> LazyMatrix:
        return Transposed(self.matrix.to(device))


class MeanHeads(LazyMatrix):
    """The mean over the heads (axis −3)."""

    def __init__(self, matrix: LazyMatrix) -> None:
        if matrix.ndim < 3:
            raise build(
                ArgumentError,
                "mean_heads",
                "a matrix (…, h, t, s)",
                f"shape {matrix.shape}",
                "it has no axis of heads",
            )
        self.matrix, self._cast = matrix, matrix._cast
        self.labels = matrix.labels

    @property
    def shape(self) -> tuple[int, ...]:
        *lead, _, t, s = self.matrix.shape
        return (*lead, t, s)

    @property
    def dtype(self) -> torch.dtype:
        return self.matrix.dtype

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    def _row_size(self) -> int:
        return self.matrix._row_size()

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        return self.matrix.tile(rows, cols).mean(-3)

    def matmul(self, v: Tensor | Numbers) -> Tensor:
        """Mean over heads of A @ v, for v (…, s, e) shared by the heads."""
        return (self.matrix @ self._operand(v).unsqueeze(-3)).mean(-3)

    def _allow(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor | None:
        allow = self.matrix._allow(rows, cols)
        return allow if allow is None or allow.ndim < 3 else allow.any(-3)

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        return MeanHeads(self.matrix[index])

    def _to(self, device: torch.device) -> LazyMatrix:
        return MeanHeads(self.matrix.to(device))
