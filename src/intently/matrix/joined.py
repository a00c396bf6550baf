"""Matrices made of several rows: the steps of a generation stacked, tokens merged into words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intently.errors import ArgumentError, build
from intently.matrix.lazy import LazyMatrix, no_autocast
from intently.matrix.views import check_product


class Stacked(LazyMatrix):
    """Rows of several calls, one above the other; keys a call did not have weigh 0."""

    def __init__(self, matrices: Sequence[LazyMatrix]) -> None:
        if not matrices:
            raise build(ArgumentError, "matrices", "at least one matrix", "none")
        if len({m.shape[:-2] for m in matrices}) > 1:
            raise build(
                ArgumentError, "matrices", "the same leading axes in all",
                ", ".join(str(m.shape) for m in matrices),
            )  # fmt: skip
        self.matrices = tuple(matrices)

    @property
    def shape(self) -> tuple[int, ...]:
        return (
            *self.matrices[0].shape[:-2],
            sum(m.shape[-2] for m in self.matrices),
            max(m.shape[-1] for m in self.matrices),
        )

    @property
    def dtype(self) -> torch.dtype:
        return self.matrices[0].dtype

    @property
    def device(self) -> torch.device:
        return self.matrices[0].device

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        parts, order, first = [], [], 0
        for m in self.matrices:
            t = m.shape[-2]
            inside = None
            if rows is not None:
                at = ((rows >= first) & (rows < first + t)).nonzero()[:, 0]
                order.append(at)
                inside = rows[at] - first
            first += t
            if inside is None or len(inside):
                parts.append(self._part(m, inside, cols))
        if not parts:
            wide = self.shape[-1] if cols is None else len(cols)
            none = (*self.shape[:-2], 0, wide)
            return torch.zeros(none, dtype=self.dtype, device=self.device)
        block = torch.cat(parts, -2)
        return block if rows is None else block.index_select(-2, torch.cat(order).argsort())

    def _part(self, m: LazyMatrix, rows: Tensor | None, cols: Tensor | None) -> Tensor:
        if cols is None:
            return F.pad(m.tile(rows), (0, self.shape[-1] - m.shape[-1]))
        there = cols < m.shape[-1]
        kept = m.tile(rows, cols[there])
        part = kept.new_zeros((*kept.shape[:-1], len(cols)))
        part[..., there] = kept
        return part

    def matmul(self, v: Tensor) -> Tensor:
        """Y (…, t, e), each call with the values it had."""
        check_product(self.shape, self.dtype, self.device, v)
        return torch.cat([m @ v[..., : m.shape[-1], :] for m in self.matrices], -2)

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        return Stacked([m[index] for m in self.matrices])

    def _to(self, device: torch.device) -> LazyMatrix:
        return Stacked([m.to(device) for m in self.matrices])


def stack_rows(matrices: Sequence[LazyMatrix]) -> LazyMatrix:
    """Return the rows of several calls (…, t_i, s_i) as one lazy matrix (…, Σ t_i, max s_i)."""
    return Stacked(matrices)


class Merged(LazyMatrix):
    """A matrix seen by words: weights summed over the columns of a word, averaged over its rows.

    ``rows`` and ``columns`` list the positions of each word; positions in no word are left out.
    Raises `ArgumentError` for positions that the matrix does not have.

    >>> from intently.matrix import Dense
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
                raise build(
                    ArgumentError, name, f"positions from 0 to {size - 1}", outside,
                    "they belong to another matrix",
                )  # fmt: skip
        self.matrix = matrix
        self.rows = tuple(map(tuple, rows))
        self.columns = tuple(map(tuple, columns))

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.matrix.shape[:-2], len(self.rows), len(self.columns))

    @property
    def dtype(self) -> torch.dtype:
        return self.matrix.dtype

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    def _row_size(self) -> int:
        return self.matrix._row_size() * max(1, max(map(len, self.rows), default=1))

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        picked = _pick(self.rows, rows)
        used = sorted({i for word in picked for i in word})
        block = self.matrix.tile(torch.tensor(used, dtype=torch.long, device=self.device))
        at = {position: n for n, position in enumerate(used)}
        over = _means([[at[i] for i in word] for word in picked], len(used), block)
        join = _sums(_pick(self.columns, cols), self.matrix.shape[-1], block)
        with no_autocast(self.device):
            return over @ block @ join.mT

    def matmul(self, v: Tensor) -> Tensor:
        """Y (…, words, e): each word's value counts for all its columns."""
        check_product(self.shape, self.dtype, self.device, v)
        t, s = self.matrix.shape[-2:]
        with no_autocast(self.device):
            y = self.matrix @ (_sums(self.columns, s, v).mT @ v)
            return _means(self.rows, t, y) @ y

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        return Merged(self.matrix[index], self.rows, self.columns)

    def _to(self, device: torch.device) -> LazyMatrix:
        return Merged(self.matrix.to(device), self.rows, self.columns)


def _pick(groups: Sequence[Sequence[int]], index: Tensor | None) -> Sequence[Sequence[int]]:
    return groups if index is None else [groups[i] for i in index.tolist()]


def _sums(groups: Sequence[Sequence[int]], size: int, like: Tensor) -> Tensor:
    """A matrix (words, size) that adds up the positions of each word."""
    joiner = like.new_zeros((len(groups), size))
    for word, group in enumerate(groups):
        joiner[word, list(group)] = 1
    return joiner


def _means(groups: Sequence[Sequence[int]], size: int, like: Tensor) -> Tensor:
    """A matrix (words, size) that averages the positions of each word; words without any give 0."""
    sums = _sums(groups, size, like)
    return sums / sums.sum(-1, keepdim=True).clamp_min(1)
