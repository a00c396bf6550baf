"""Matrices of given weights, of the steps of a generation stacked, of tokens merged into words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intently.core.kernels.operands import in_autocast, no_autocast
from intently.core.matrix.indexing import Entry, positions
from intently.core.matrix.lazy import Derived, Labels, LazyMatrix, Transposed
from intently.errors import ArgumentError, MemoryRefused, build, shape_of
from intently.foundation.arrays import Numbers, as_tensor
from intently.foundation.checks import check_kind


class Dense(LazyMatrix):
    """Weights (…, t, s) that are already computed, with the interface of a lazy matrix.

    A floating-point tensor is used without a copy; arrays, lists and integers are copied, as by
    `attend`. Raises `KindError` for anything else, `ArgumentError` for fewer than two axes.

    ``softmax`` (…, t, s) are the weights before a model changed them.

    >>> Dense([[0.5, 0.5], [0, 1]]).entropy()
    tensor([0.6931, 0.0000])
    """

    def __init__(
        self,
        weights: Tensor | Numbers,
        labels: Labels = (None, None),
        softmax: Tensor | None = None,
    ) -> None:
        weights = as_tensor(weights, "weights")
        if weights.ndim < 2:
            raise build(ArgumentError, "weights", "numbers (…, t, s)", shape_of(weights))
        self.weights = self._like = weights
        self._cast, self._softmax = in_autocast(weights.device), softmax
        if labels != (None, None):
            self.labels = self.label(*labels).labels

    @property
    def softmax(self) -> Dense:
        """The weights (…, t, s) before a model changed them; these, if it did not."""
        return self if self._softmax is None else Dense(self._softmax, self.labels)

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
        return Dense(self.weights[index], softmax=_of(self._softmax, lambda x: x[index]))

    def _to(self, device: torch.device) -> LazyMatrix:
        return Dense(self.weights.to(device), softmax=_of(self._softmax, lambda x: x.to(device)))


def _of(x: Tensor | None, change: Callable[[Tensor], Tensor]) -> Tensor | None:
    return None if x is None else change(x)


class Stacked(LazyMatrix):
    """Rows of several calls, stacked; keys that a call did not have get weight 0."""

    def __init__(self, matrices: Sequence[LazyMatrix]) -> None:
        if not matrices:
            raise build(ArgumentError, "matrices", "at least one matrix", "none")
        if len({m.shape[:-2] for m in matrices}) > 1:
            got = ", ".join(str(m.shape) for m in matrices)
            raise build(ArgumentError, "matrices", "the same leading axes in all", got)
        self.matrices, self._like = tuple(matrices), matrices[0]
        self._cast = any(m._cast for m in matrices)

    @property
    def shape(self) -> tuple[int, ...]:
        return (
            *self.matrices[0].shape[:-2],
            sum(m.shape[-2] for m in self.matrices),
            max(m.shape[-1] for m in self.matrices),
        )

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        return self._stacked(lambda m, r, c: m.tile(r, c), rows, cols, self.dtype)

    def _allow(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor | None:
        def allowed(m: LazyMatrix, r: Tensor | None, c: Tensor | None) -> Tensor:
            return m._allowed(r, c).expand(*self.shape[:-2], -1, -1)

        none = torch.empty(0, dtype=torch.long, device=self.device)
        same = len({m.shape[-1] for m in self.matrices}) == 1
        if same and all(m._allow(none, none) is None for m in self.matrices):
            return None
        return self._stacked(allowed, rows, cols, torch.bool)

    def _stacked(
        self,
        part: Callable[[LazyMatrix, Tensor | None, Tensor | None], Tensor],
        rows: Tensor | None,
        cols: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        """``part`` of each call, (…, rows, cols), in the order of ``rows``; ``dtype`` for none."""
        wide = self.shape[-1] if cols is None else len(cols)
        parts, order, first = [], [], 0
        for m in self.matrices:
            t, s = m.shape[-2:]
            inside, there = None, None if cols is None else (cols < s).nonzero()[:, 0]
            if rows is not None:
                at = ((rows >= first) & (rows < first + t)).nonzero()[:, 0]
                order.append(at)
                inside = rows[at] - first
            first += t
            if inside is None or len(inside):
                block = part(m, inside, None if cols is None else cols[there])
                if there is None:
                    block = F.pad(block, (0, wide - s))
                elif len(there) < wide:
                    block = block.new_zeros((*block.shape[:-1], wide)).index_copy(-1, there, block)
                parts.append(block)
        if not parts:
            return torch.zeros((*self.shape[:-2], 0, wide), dtype=dtype, device=self.device)
        block = torch.cat(parts, -2)
        return block if rows is None else block.index_select(-2, torch.cat(order).argsort())

    def matmul(self, v: Tensor | Numbers) -> Tensor:
        """Y (…, t, e), each call with its own values."""
        v = self._operand(v)
        return torch.cat([m @ v[..., : m.shape[-1], :] for m in self.matrices], -2)

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        return Stacked([m[index] for m in self.matrices])

    def _to(self, device: torch.device) -> LazyMatrix:
        return Stacked([m.to(device) for m in self.matrices])


def stack_rows(matrices: Sequence[LazyMatrix]) -> LazyMatrix:
    """Return the rows of several calls (…, t_i, s_i) as one lazy matrix (…, Σ t_i, max s_i)."""
    return Stacked(matrices)


class Merged(Derived):
    """A matrix over words: weights summed over the columns of a word, averaged over its rows.

    ``rows`` and ``columns`` list the positions of each word; positions in no word are left out.
    Raises `ArgumentError` for positions that the matrix does not have.

    >>> from intently.core.matrix import Dense
    >>> A = Dense(torch.tensor([[0.2, 0.3, 0.5]]))
    >>> Merged(A, rows=[[0]], columns=[[0, 1], [2]]).dense()
    tensor([[0.5000, 0.5000]])
    """

    def __init__(
        self, matrix: LazyMatrix, rows: Sequence[Sequence[int]], columns: Sequence[Sequence[int]]
    ) -> None:
        t, s = matrix.shape[-2:]
        for name, groups, size in (("rows", rows, t), ("columns", columns, s)):
            outside = [i for group in groups for i in group if not 0 <= i < size]
            if outside:
                expected = f"positions from 0 to {size - 1}"
                raise build(ArgumentError, name, expected, outside, "they belong to another matrix")
        super().__init__(matrix)
        self.labels = (None, None)
        self.rows, self.columns = (
            tuple(tuple(dict.fromkeys(group)) for group in groups) for groups in (rows, columns)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.matrix.shape[:-2], len(self.rows), len(self.columns))

    def _row_size(self) -> int:
        return self.matrix._row_size() * max(1, max(map(len, self.rows), default=1))

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        return self._joined(self.matrix.tile, _pick(self.rows, rows), _pick(self.columns, cols))

    def _allow(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor | None:
        def allowed(r: Tensor | None, c: Tensor | None) -> Tensor:
            return self.matrix._allowed(r, c).to(torch.float32)

        return self._joined(allowed, _pick(self.rows, rows), _pick(self.columns, cols)) > 0

    def _joined(
        self,
        part: Callable[[Tensor | None, Tensor | None], Tensor],
        rows: Sequence[Sequence[int]],
        columns: Sequence[Sequence[int]],
    ) -> Tensor:
        """``part`` of the positions of some words, (…, words, words)."""
        used = sorted({i for word in rows for i in word})
        at = {position: n for n, position in enumerate(used)}
        block = part(torch.tensor(used, dtype=torch.long, device=self.device), None)
        block = _means([[at[i] for i in word] for word in rows], block)
        return _sums(columns, block.mT).mT

    def matmul(self, v: Tensor | Numbers) -> Tensor:
        """Y (…, words, e): each word's value counts for all its columns."""
        v = self._cleared(self._operand(v))
        s, wide = self.matrix.shape[-1], torch.promote_types(self.dtype, torch.float32)
        holding: list[list[int]] = [[] for _ in range(s)]
        for word, group in enumerate(self.columns):
            for position in group:
                holding[position].append(word)
        y = self.matrix @ _sums(holding, v.to(wide)).to(self.dtype)
        return _means(self.rows, y.to(wide)).to(self.dtype)

    def _parts(self, change: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
        return self.rows, self.columns


def _pick(groups: Sequence[Sequence[int]], index: Tensor | None) -> Sequence[Sequence[int]]:
    return groups if index is None else [groups[i] for i in index.tolist()]


def _sums(groups: Sequence[Sequence[int]], x: Tensor) -> Tensor:
    """Sums (…, groups, n) of the rows of x (…, steps, n) in each group.

    A product with ones and zeros would spread NaN from one row into all groups.
    """
    rows = torch.tensor([i for group in groups for i in group], dtype=torch.long, device=x.device)
    of = torch.tensor([len(group) for group in groups], dtype=torch.long, device=x.device)
    of = torch.arange(len(groups), device=x.device).repeat_interleave(of)
    sums = x.new_zeros((*x.shape[:-2], len(groups), x.shape[-1]))
    return sums.index_add(-2, of, x.index_select(-2, rows))


def _means(groups: Sequence[Sequence[int]], x: Tensor) -> Tensor:
    """Means (…, groups, n) of the rows of each group; 0 for a group without any."""
    sizes = torch.tensor([max(1, len(group)) for group in groups], dtype=x.dtype, device=x.device)
    return _sums(groups, x) / sizes[:, None]


def rollout(
    matrices: Sequence[LazyMatrix],
    residual: float = 0.5,
    queries: Entry | Sequence[int] | np.ndarray | np.integer | None = None,
    max_bytes: int = 2**30,
) -> Tensor:
    """Return how much each query depends on each input position through all layers, (…, n, s).

    ``matrices`` are square self-attention, from the first layer to the last; heads (axis −3) are
    averaged. Each layer counts as residual · I + (1 − residual) · A, and the product runs from
    the last layer back as row vectors times matrices, so that no t × s product is built.
    ``queries`` are positions (an int drops the axis), all where None. A row sums to 1 if every row
    of every A does.

    Raises `ArgumentError` for matrices that are not square or differ in shape, and
    `MemoryRefused` where the result would take more than ``max_bytes``.

    Source: Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.

    >>> from intently.core.matrix import Dense
    >>> A = Dense(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    >>> rollout([A, A], queries=1)
    tensor([0.4375, 0.5625])
    """
    if not 0 <= residual <= 1:
        raise build(ArgumentError, "residual", "a share from 0 to 1", residual)
    layers = [_mean_heads(m) for m in matrices]
    _check_layers(layers)
    last = layers[-1]
    t = last.shape[-1]
    if queries is not None and not isinstance(queries, (int, slice, Tensor)):
        given = np.asarray(queries)
        queries = torch.as_tensor(given, dtype=None if given.size else torch.long)
    one = isinstance(queries, int) or (isinstance(queries, Tensor) and not queries.ndim)
    at = positions(queries, t, "t", last.device)
    at = torch.arange(t, device=last.device) if at is None else at
    dtype = torch.promote_types(last.dtype, torch.float32)
    size = math.prod(last.shape[:-2]) * len(at) * t * (torch.finfo(dtype).bits // 8)
    if size > max_bytes:
        raise build(
            MemoryRefused,
            "rollout",
            f"at most max_bytes={max_bytes:,} bytes",
            f"{size:,} bytes for {len(at)} queries of {t}",
            fix="ask for fewer: rollout(matrices, queries=range(10)), or raise max_bytes",
        )
    columns = torch.zeros(t, len(at), dtype=dtype, device=last.device)
    columns[at, torch.arange(len(at), device=last.device)] = 1
    columns = columns.expand(*last.shape[:-2], *columns.shape)
    for layer in reversed(layers):
        columns = residual * columns + (1 - residual) * _drawn(layer, columns)
    return columns[..., 0] if one else columns.mT


def _drawn(layer: LazyMatrix, columns: Tensor) -> Tensor:
    """Aᵀ columns; a NaN row of A reaches only the columns that depend on its position."""
    found = Transposed(layer).summed(columns)
    if not bool(found.isnan().any()):
        return found
    broken = (
        layer @ torch.ones(layer.shape[-1], 1, dtype=layer.dtype, device=layer.device)
    ).isnan()
    reached = (broken & (columns != 0)).any(-2, keepdim=True)
    return Transposed(layer).summed(columns, nan=False).masked_fill(reached, math.nan)


def _mean_heads(matrix: LazyMatrix) -> LazyMatrix:
    check_kind(
        matrix,
        LazyMatrix,
        "matrices",
        "lazy matrices, one for each layer",
        fix="wrap dense weights: it.Dense(weights)",
    )
    return matrix.mean_heads() if matrix.ndim > 2 else matrix


def _check_layers(layers: Sequence[LazyMatrix]) -> None:
    if not layers:
        raise build(ArgumentError, "matrices", "at least one layer", "none")
    for layer in layers:
        if layer.shape[-2] != layer.shape[-1]:
            expected = "square matrices, t = s"
            cause = "rollout follows one sequence through its layers: self-attention"
            raise build(ArgumentError, "matrices", expected, f"shape {layer.shape}", cause)
    if len({layer.shape for layer in layers}) > 1:
        shapes = ", ".join(str(layer.shape) for layer in layers)
        raise build(ArgumentError, "matrices", "layers of one shape, heads aside", shapes)
