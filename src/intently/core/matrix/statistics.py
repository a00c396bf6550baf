"""Statistics of lazy matrices, written once on ``tile``, with one block of rows in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intently.core.kernels.native import measuring
from intently.core.kernels.operands import differentiated, transformed
from intently.core.kernels.problem import Problem
from intently.core.kernels.walk import WeightBlock
from intently.core.masks.geometry import copied
from intently.core.matrix.indexing import positions
from intently.foundation.arrays import Kind
from intently.foundation.checks import check_word, whole_number

T = TypeVar("T")

BLOCK = 2**22
"""Weights that one block of a streamed statistic holds at most."""


class Statistics:
    """Statistics of weights (…, t, s), computed from tiles."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(…, t, s)."""
        raise NotImplementedError

    _like: Kind
    """The tensor or matrix that has the dtype and the device, unless a subclass gives these."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of products and dense weights."""
        return self._like.dtype

    @property
    def device(self) -> torch.device:
        """Where the matrix lives."""
        return self._like.device

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        """Exact weights (…, len(rows), len(cols)) of index tensors; None means all."""
        raise NotImplementedError

    def _allow(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor | None:
        """Allowed entries, broadcastable to (…, rows, cols); None without a mask."""
        return None

    def _allowed(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        """`_allow` expanded over rows and columns: (…, rows, cols), True without a mask."""
        allow = self._allow(rows, cols)
        if allow is None:
            allow = torch.ones((), dtype=torch.bool, device=self.device)
        t, s = self.shape[-2:]
        size = t if rows is None else len(rows), s if cols is None else len(cols)
        return allow.expand(*allow.shape[:-2], *size)

    def _row_size(self) -> int:
        """The number of weights computed per row."""
        return math.prod(self.shape[:-2]) * self.shape[-1]

    def _blocks(self, size: int | None = None) -> Iterator[WeightBlock]:
        """Yield all weights that are not 0 as blocks of rows, which the caller may change.

        A block holds about ``size`` weights and all heads of its rows; without a size about
        `BLOCK` weights, and not always all heads.
        """
        s = self.shape[-1]
        step = max(1, (size or BLOCK) // max(1, self._row_size()))
        for start in range(0, self.shape[-2] if s else 0, step):
            rows = slice(start, min(start + step, self.shape[-2]))
            index = torch.arange(rows.start, rows.stop, device=self.device)
            yield WeightBlock((), rows, slice(0, s), self.tile(index))

    def _columns(self, cols: Tensor) -> Tensor:
        """Weights (…, t, len(cols)), for loops over all columns."""
        return self.tile(None, cols)

    def _zeros(self, *last: int, dtype: torch.dtype | None = None) -> Tensor:
        """Zeros (…, *last) in the dtype that statistics are computed in."""
        dtype = dtype or torch.promote_types(self.dtype, torch.float32)
        shape = (*self.shape[:-2], *last)
        if transformed():  # as many as the weights are
            none = torch.zeros(0, dtype=torch.long, device=self.device)
            return self.tile(none, none).new_zeros(shape, dtype=dtype)
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _per_row(self, reduce: Callable[[WeightBlock], Tensor]) -> Tensor:
        found = self._zeros(self.shape[-2])
        for block in self._blocks():
            found[(*block.lead, ..., block.rows)] = reduce(block)
        return found

    def _asked(self, ask: Callable[[Problem], T]) -> T | None:
        """What ``ask`` finds by the native kernel; None where that does not serve the matrix."""
        return None

    def _by_query(
        self, name: str, reduce: Callable[[WeightBlock], Tensor], **options: Any
    ) -> Tensor:
        """A statistic of every query (…, t), by the native kernel or else from blocks."""
        found = self._asked(lambda p: measuring.by_query(p, [name], **options)[name])
        return self._per_row(reduce) if found is None else found

    def top(self, n: int) -> tuple[Tensor, Tensor]:
        """Return each query's n keys of largest weight: weights and keys (…, t, n), largest first.

        If a query has fewer than n keys, the rest has weight 0 and key −1. Keys of equal weight
        come in any order. A NaN query has no order: weights NaN, keys −1.
        """
        whole_number(n, "n", 1)
        if n <= measuring.MOST:
            found = self._asked(lambda p: measuring.by_query(p, ["top"], n=n))
            if found is not None:
                return found["top"], found["top_keys"]
        weights = self._zeros(self.shape[-2], n)
        keys = torch.full_like(weights, -1, dtype=torch.long)
        for block in self._blocks():
            w, key = largest(block.weights, min(n, block.weights.shape[-1]))
            unknown, missing = w[..., :1].isnan(), (0, n - w.shape[-1])
            key = (key + block.cols.start).masked_fill((w == 0) | unknown, -1)
            at = (*block.lead, ..., block.rows, slice(None))
            weights[at] = F.pad(w, missing).masked_fill(unknown, math.nan)
            keys[at] = F.pad(key, missing, value=-1)
        return weights, keys

    def argmax(self) -> Tensor:
        """Return each query's key of largest weight, (…, t).

        −1 for a query that may attend to nothing, and for a NaN query.
        """
        found = self._asked(lambda p: measuring.by_query(p, ["argmax"]))
        if found is not None:
            return found["argmax"]
        keys = self._zeros(self.shape[-2], dtype=torch.long) - 1
        for block in self._blocks():
            w, key = block.weights.max(-1)
            at = (*block.lead, ..., block.rows)
            keys[at] = (key + block.cols.start).masked_fill((w == 0) | w.isnan(), -1)
        return keys

    def entropy(self) -> Tensor:
        """Return −Σ w log w of each query over the keys it may attend, (…, t), in nats.

        0 if one key takes all the weight or there is no key, log n if n keys share it equally. The
        weights of a sink are left out of the sum, so that w sums to less than 1 there; softcap,
        bias and mask act through w.

        Source: Shannon 1948, section 6.
        """

        def reduce(block: WeightBlock) -> Tensor:
            w = block.weights
            if not differentiated((w,)):
                return torch.special.entr(w).sum(-1)
            w = w.masked_fill(w == 0, 1)  # the slope of w log w at 0 is infinite
            return -(w * w.log()).sum(-1)

        return self._by_query("entropy", reduce)

    def received(self, normalize: bool = False) -> Tensor:
        """Return how much attention each key receives: the column sums Σ over queries of w, (…, s).

        All keys together receive t, minus the weight of sinks and of queries without keys. With
        ``normalize``, each sum is divided by the number of queries that may see the key, which
        makes keys comparable under a causal mask; keys that no query may see have 0. In a mean over
        heads, a query sees every key that it sees in some head; in a matrix of words, every key
        that one of its tokens sees.
        """
        total = self._asked(measuring.received)
        if total is None:
            total = self._zeros(self.shape[-1])
            for block in self._blocks():
                total[(*block.lead, ..., block.cols)] += block.weights.sum(-2)
        return total / self._viewers().clamp_min(1) if normalize else total

    def _viewers(self) -> Tensor:
        """The number of queries that may see each key, broadcastable to (…, s)."""
        t, s = self.shape[-2:]
        counts = torch.zeros(s, dtype=torch.long, device=self.device)
        step = max(1, BLOCK // max(1, self._row_size()))
        for rows in torch.arange(t, device=self.device).split(step):
            allow = self._allow(rows)
            if allow is None:
                return torch.full_like(counts, t)
            counts = counts + allow.expand(*allow.shape[:-2], len(rows), s).sum(-2)
        return counts

    def mass(self, keys: Tensor | Sequence[int] | np.ndarray) -> Tensor:
        """Return the weight of each query on ``keys`` together, (…, t), from 0 to 1.

        ``keys`` are positions, each counted once, or a boolean (s,). Raises `RangeError` for
        positions outside.
        """
        given = keys if isinstance(keys, Tensor) else copied(keys, "keys", "positions, or booleans")
        given = given if given.numel() else given.long()
        index = positions(given, self.shape[-1], "s", self.device)
        assert index is not None
        counted = torch.zeros(self.shape[-1], dtype=torch.bool, device=self.device)
        counted[index] = True

        def reduce(block: WeightBlock) -> Tensor:
            return block.weights.masked_fill(~counted[block.cols], 0).sum(-1)  # 0, if it was NaN

        return self._by_query("mass", reduce, keys=counted)

    def distance(self) -> Tensor:
        """Return the mean distance Σ w |position − key| of each query, (…, t), in steps.

        Query i is at position s − t + i (bottom-right).
        """
        t, s = self.shape[-2:]
        every = torch.arange(max(s, t), device=self.device)

        def reduce(block: WeightBlock) -> Tensor:
            w = block.weights
            at, keys = every[block.rows].to(w.dtype) + (s - t), every[block.cols].to(w.dtype)
            return (w * (at[:, None] - keys).abs_()).sum(-1)

        return self._by_query("distance", reduce)

    def pool(self, rows: int, cols: int, reduce: str = "mean") -> Tensor:
        """Return a picture (…, rows, cols) of the matrix: "mean", "max" or "sum" of each cell.

        Cell (i, j) covers queries ⌈i t / rows⌉ … ⌈(i + 1) t / rows⌉ − 1, and the corresponding
        keys; asking for more cells than entries gives the matrix itself. Masked entries count as 0.
        """
        check_word(reduce, "reduce", ("mean", "max", "sum"))
        whole_number(rows, "rows", 1)
        whole_number(cols, "cols", 1)
        t, s = self.shape[-2:]
        rows, cols = min(rows, t), min(cols, s)
        cells = self._cells(rows, cols, reduce) if rows * cols else self._zeros(rows, cols)
        if reduce != "mean" or not rows * cols:
            return cells
        across, down = Cells(s, cols, self.device), Cells(t, rows, self.device)
        return cells / (down.sizes[:, None] * across.sizes)

    def _cells(self, rows: int, cols: int, reduce: str) -> Tensor:
        """Sums of the cells of a picture, or their maxima."""
        if cols <= measuring.COLUMNS:
            cells = self._asked(lambda p: measuring.picture(p, rows, cols, reduce))
            if cells is not None:
                return cells
        t, s = self.shape[-2:]
        out = self._zeros(rows, cols)
        join, method = (torch.maximum, "amax") if reduce == "max" else (torch.add, "sum")
        across, down = Cells(s, cols, self.device), Cells(t, rows, self.device)
        if reduce == "max":
            out = out - math.inf
        for block in self._blocks():
            picture = down.reduced(block.weights, block.rows, method)
            picture = across.reduced(picture.mT, block.cols, method).mT
            at = (*block.lead, ..., down.of(block.rows), across.of(block.cols))
            out[at] = join(out[at].clone(), picture)
        return out.masked_fill(out.isneginf(), 0)


class Cells:
    """An axis of ``n`` steps cut into ``count`` cells, which differ by at most one step."""

    def __init__(self, n: int, count: int, device: torch.device) -> None:
        self.n, self.count = int(n), count
        self.edges = -(-np.arange(count + 1) * self.n // count)
        self.sizes = torch.tensor(np.diff(self.edges).tolist(), device=device)

    def of(self, span: slice) -> slice:
        """The cells that hold the steps of ``span``."""
        return slice(span.start * self.count // self.n, (span.stop - 1) * self.count // self.n + 1)

    def reduced(self, x: Tensor, span: slice, reduce: str) -> Tensor:
        """Sum or maximum over the steps of each cell, for x (…, steps of span, m)."""
        cells = self.of(span)
        edges = self.edges[cells.start : cells.stop + 1].clip(span.start, span.stop)
        parts = x.split(np.diff(edges).tolist(), -2)
        if reduce == "amax":
            return torch.stack([part.amax(-2) for part in parts], -2)
        return torch.stack([part.sum(-2) for part in parts], -2)


def largest(w: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n largest entries of the last axis, and their indices.

    The n largest lie in the n groups with the largest maxima, so that long rows are read once.
    """
    group, steps = 64, w.shape[-1]
    count = steps // group
    if count < 4 * n:
        return w.topk(n, -1)
    head = w[..., : count * group].unflatten(-1, (count, group))
    best = head.amax(-1).topk(n, -1, sorted=False).indices
    inside = torch.arange(group, device=w.device)
    where = (best[..., None] * group + inside).flatten(-2)
    rest = torch.arange(count * group, steps, device=w.device).expand(*w.shape[:-1], -1)
    where = torch.cat([where, rest], -1)
    found, at = w.gather(-1, where).topk(n, -1)
    return found, where.gather(-1, at)
