"""`Dense`: weights that are already computed, with the interface of a lazy matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from intently.errors import ArgumentError, build, shape_of
from intently.foundation.arrays import Numbers, as_tensor
from intently.kernels.modes import in_autocast, no_autocast
from intently.matrix.lazy import Labels, LazyMatrix


class Dense(LazyMatrix):
    """Weights (…, t, s) that are already computed, with the interface of a lazy matrix.

    A floating-point tensor is used without a copy; arrays, lists and integers are copied, as by
    `attend`. Raises `KindError` for anything else, `ArgumentError` for fewer than two axes.

    >>> Dense([[0.5, 0.5], [0, 1]]).entropy()
    tensor([0.6931, 0.0000])
    """

    def __init__(self, weights: Tensor | Numbers, labels: Labels = (None, None)) -> None:
        weights = as_tensor(weights, "weights")
        if weights.ndim < 2:
            raise build(ArgumentError, "weights", "numbers (…, t, s)", shape_of(weights))
        self.weights = self._like = weights
        self._cast = in_autocast(weights.device)
        if labels != (None, None):
            self.labels = self.label(*labels).labels

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weights.shape)

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
