"""Weights multiplied by value norms or by the gradient of a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from intently.core.kernels.operands import no_autocast
from intently.core.kernels.walk import WeightBlock
from intently.core.matrix.lazy import Derived, LazyMatrix
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import Numbers


def by_value_norm(matrix: LazyMatrix, v: Tensor, out: Tensor | None = None) -> LazyMatrix:
    """Return the lazy matrix of w_ij ‖f(v_j)‖, the norm of each key's contribution, (…, h, t, s).

    ``v`` (…, g, s, e) are the values, shared by heads as the keys are; ``out`` (h, e, c) each
    head's rows of the output map, so that f(v) = v W_O; without it f(v) = v. Rows do not sum to 1.

    Raises `KindError` and `ArgumentError` for values and maps that do not fit.

    Source: Kobayashi et al. 2020, "Attention is Not Only a Weight", section 3.

    >>> from intently.core.matrix import Dense
    >>> A = Dense(torch.tensor([[0.5, 0.5]]))
    >>> by_value_norm(A, torch.tensor([[3.0, 4.0], [0.0, 0.0]])).dense()
    tensor([[2.5000, 0.0000]])
    """
    v = matrix._operand(v)
    v = _per_head(v.to(torch.promote_types(v.dtype, torch.float32)), matrix)
    if out is not None:
        h = matrix.shape[-3] if matrix.ndim > 2 else 1
        want = (h, v.shape[-1])
        if not isinstance(out, Tensor) or out.ndim != 3 or tuple(out.shape[:2]) != want:
            cause = "each head has its own rows of the output map"
            fix = "for nn.Linear(h·e, c) write weight.T.unflatten(0, (h, e))"
            expected = f"shape (h={h}, e={want[1]}, c)"
            raise build(ArgumentError, "out", expected, shape_of(out), cause, fix)
        with no_autocast(matrix.device):
            triangle = torch.linalg.qr(out.to(v).mT, mode="r").R
            v = v @ (triangle.mT if matrix.ndim > 2 else triangle[0].mT)
    lengths = v.norm(dim=-1, keepdim=True)
    return Weighted(matrix, lengths.new_ones(*matrix.shape[:-1], 1), lengths)


def by_gradient(matrix: LazyMatrix, v: Tensor, dy: Tensor) -> Weighted:
    """Return the lazy matrix of w_ij ∂L/∂w_ij, each weight times the gradient of a loss to it.

    ``v`` (…, g, s, e) are the values and ``dy`` (…, h, t, e) the gradient of the loss to
    y = A @ v: ∂L/∂w = dy vᵀ, computed by tiles. ``.positive()`` keeps the positive entries, and its
    mean over heads is the Ā of Chefer et al.; `rollout` of one such matrix for each layer, times
    2**layers, is their relevance R.

    Raises `KindError` and `ArgumentError` for values and gradients that do not fit.

    Source: Chefer et al. 2021, "Generic Attention-model Explainability for Interpreting Bi-Modal
    and Encoder-Decoder Transformers", equations 5 and 6; Barkan et al. 2021, "Grad-SAM".

    >>> from intently.core.matrix import Dense
    >>> A = Dense(torch.tensor([[0.5, 0.5]]))
    >>> B = by_gradient(A, v=torch.tensor([[1.0], [-2.0]]), dy=torch.tensor([[4.0]]))
    >>> B.dense(), B.positive().dense()
    (tensor([[ 2., -4.]]), tensor([[2., 0.]]))
    """
    v = matrix._operand(v)
    *lead, t, _ = matrix.shape
    if not isinstance(dy, Tensor) or dy.dtype != v.dtype or dy.device != v.device:
        got = f"{dy.dtype} on {dy.device}" if isinstance(dy, Tensor) else type(dy).__name__
        raise build(KindError, "dy", f"a tensor like v, {v.dtype} on {v.device}", got)
    if tuple(dy.shape) != (*lead, t, v.shape[-1]):
        expected, got = f"the shape of A @ v, {(*lead, t, v.shape[-1])}", shape_of(dy)
        raise build(ArgumentError, "dy", expected, got, "it is the gradient of the loss to A @ v")
    return Weighted(matrix, dy, _per_head(v, matrix))


class Weighted(Derived):
    """The weights of a matrix, each times left_i · right_j: (…, t, n) and (…, s, n)."""

    def __init__(
        self, matrix: LazyMatrix, left: Tensor, right: Tensor, positive: bool = False
    ) -> None:
        super().__init__(matrix)
        self.left, self.right = left, right.expand(*matrix.shape[:-2], *right.shape[-2:])
        self.only_positive = positive

    def _parts(self, change: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
        return change(self.left), change(self.right), self.only_positive

    def _row_size(self) -> int:
        return self.matrix._row_size()

    def positive(self) -> LazyMatrix:
        """Return the matrix with 0 where the product is negative, still lazy."""
        return Weighted(self.matrix, self.left, self.right, True)

    def _times(self, w: Tensor, cut: tuple[slice, ...], rows: Tensor, cols: Tensor) -> Tensor:
        """Weights (…, rows, cols) times their factors; ``cut`` says which heads they belong to."""
        wide = torch.promote_types(w.dtype, self.left.dtype)
        left, right = self.left[cut].index_select(-2, rows), self.right[cut].index_select(-2, cols)
        w = w * (left.to(wide) @ right.to(wide).mT)
        return w.clamp_min(0) if self.only_positive else w

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        t, s = self.shape[-2:]
        every = torch.arange(max(t, s), device=self.device)
        w = self.matrix.tile(rows, cols)
        with no_autocast(self.device):
            return self._times(
                w, (), every[:t] if rows is None else rows, every[:s] if cols is None else cols
            )

    def _blocks(self, size: int | None = None) -> Iterator[WeightBlock]:
        for block in self.matrix._blocks(size):
            spans = (block.rows, block.cols)
            rows, cols = (torch.arange(x.start, x.stop, device=self.device) for x in spans)
            with no_autocast(self.device):
                w = self._times(block.weights, block.lead, rows, cols)
            yield block._replace(weights=w)

    def _allow(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor | None:
        return self.matrix._allow(rows, cols)

    def _viewers(self) -> Tensor:
        return self.matrix._viewers()

    def matmul(self, v: Tensor | Numbers) -> Tensor:
        """Y (…, t, e) = A @ v for v (…, s, e), summed over blocks."""
        v = self._operand(v)
        wide = torch.promote_types(self.dtype, torch.float32)
        v = self._cleared(_per_head(v, self).to(wide))
        lead = torch.broadcast_shapes(self.shape[:-2], v.shape[:-2])
        y = v.new_zeros(*lead, self.shape[-2], v.shape[-1])
        v = v.expand(*lead, *v.shape[-2:])
        for block in self._blocks():
            with no_autocast(self.device):
                part = block.weights.to(wide) @ v[(*block.lead, ..., block.cols, slice(None))]
            y[(*block.lead, ..., block.rows, slice(None))] = part
        return y.to(self.dtype)


def _per_head(v: Tensor, matrix: LazyMatrix) -> Tensor:
    """Values (…, g, s, e) repeated to the heads of a matrix (…, h, t, s)."""
    if v.ndim < 3 or matrix.ndim < 4:
        return v
    h, g = matrix.shape[-3], v.shape[-3]
    if g in (1, h):
        return v
    if h % g:
        raise build(
            ArgumentError, "v", f"g heads, h={h} a multiple of g", shape_of(v), "heads are axis −3"
        )
    return v.repeat_interleave(h // g, -3)
