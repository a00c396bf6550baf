"""The lazy matrix: weights that nobody has to build, and every statistic written on them once.

A `LazyMatrix` has two primitives, ``tile`` and ``matmul``. Everything else here streams blocks of
rows through ``tile`` and never holds more than one block.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from intently.errors import ArgumentError, KindError, MemoryRefused, build, shape_of

BLOCK = 2**22
"""Weights that one block of a streamed statistic holds at most."""

Labels: TypeAlias = tuple[tuple[str, ...] | None, tuple[str, ...] | None]


class LazyMatrix:
    """Attention weights (…, t, s) as a value: rows belong to queries and sum to 1 over keys.

    Subclasses give ``shape``, ``dtype``, ``device``, ``tile`` and ``matmul``.
    """

    labels: Labels = (None, None)
    __iter__ = None
    __hash__ = object.__hash__

    # --- the two primitives -------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """(…, t, s)."""
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of products and dense weights."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Where the matrix lives."""
        raise NotImplementedError

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        """Exact weights (…, len(rows), len(cols)) of index tensors; None means all."""
        raise NotImplementedError

    def matmul(self, v: Tensor) -> Tensor:
        """Y (…, t, e) = weights @ v (…, s, e)."""
        raise NotImplementedError

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        """Return the lazy matrix under an index of the leading axes."""
        raise NotImplementedError

    # --- views ---------------------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        """How many axes the matrix has."""
        return len(self.shape)

    @property
    def mT(self) -> LazyMatrix:  # noqa: N802 - PyTorch's name
        """The transpose, still lazy: ``A.mT @ u`` is streamed."""
        return Transposed(self)

    def mean_heads(self) -> LazyMatrix:
        """Return the mean over the heads (axis −3), still lazy: (…, t, s)."""
        if self.ndim < 3:
            raise build(
                ArgumentError, "mean_heads", "a matrix (…, h, t, s)", f"shape {self.shape}",
                "it has no axis of heads",
            )  # fmt: skip
        return MeanHeads(self)

    def label(
        self, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None
    ) -> LazyMatrix:
        """Return the same matrix with labels for rows (t strings) and columns (s strings)."""
        for name, given, size in (("rows", rows, self.shape[-2]), ("columns", columns, self.shape[-1])):
            if given is not None and len(given) != size:
                raise build(ArgumentError, name, f"{size} labels", f"{len(given)}")
        other = copy.copy(self)
        other.labels = (
            self.labels[0] if rows is None else tuple(rows),
            self.labels[1] if columns is None else tuple(columns),
        )
        return other

    def __getitem__(self, index: Any) -> Any:
        """Index leading axes lazily; index t or s for exact weights.

        Rows and columns are taken orthogonally, and an int drops its axis, as for a dense matrix:
        ``A[..., 3, :]`` are the weights of query 3.
        """
        lead, rows, cols = _split(index, self.ndim)
        if rows is None and cols is None:
            found = self if not lead else self._lead(lead)
            found.labels = self.labels
            return found
        block = self if not lead else self._lead(lead)
        return _take(block.tile, rows, cols, *self.shape[-2:], self.device)

    def __matmul__(self, v: Tensor) -> Tensor:
        """Y (…, t, e) = A @ v for v (…, s, e)."""
        return self.matmul(v)

    # --- everything at once ----------------------------------------------------------------------

    def dense(self, max_bytes: int = 2**30) -> Tensor:
        """All the weights (…, t, s) in the dtype of q.

        Raises `MemoryRefused` where they would take more than ``max_bytes``.
        """
        size = math.prod(self.shape) * (torch.finfo(self.dtype).bits // 8)
        if size > max_bytes:
            raise build(
                MemoryRefused, "dense", f"at most max_bytes={max_bytes:,} bytes",
                f"{size:,} bytes for shape {self.shape}",
                fix="take A[..., rows, cols], A.pool(rows, cols) or A.top(n), or raise max_bytes",
            )  # fmt: skip
        return self.tile().to(self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the dense weights for NumPy and matplotlib, with the same refusal as `dense`."""
        dense = self.dense().detach().cpu()
        array = (dense.float() if dense.dtype is torch.bfloat16 else dense).numpy()
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        """Hand the dense weights to ``torch.as_tensor`` and other readers of DLPack."""
        return self.dense().detach().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.dense().__dlpack_device__() if self.device.type != "cpu" else (1, 0)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse torch functions: a lazy matrix is no tensor."""
        if getattr(func, "__name__", "") in ("__rmatmul__", "matmul") and len(args) == 2:
            raise build(
                KindError, "matmul", "the matrix on the left, A @ v", "a tensor on the left",
                fix="write A.mT @ u for the transposed product, or A.dense()",
            )  # fmt: skip
        raise build(
            KindError, getattr(func, "__name__", "function"), "a tensor", "a lazy attention matrix",
            fix="hand in A.dense(), or a part of it such as A[..., :10, :]",
        )  # fmt: skip

    # --- statistics, streamed over blocks of rows -------------------------------------------------

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        t = self.shape[-2]
        step = max(1, BLOCK // max(1, math.prod(self.shape[:-2]) * self.shape[-1]))
        for start in range(0, t, step):
            rows = torch.arange(start, min(t, start + step), device=self.device)
            yield slice(start, start + len(rows)), self.tile(rows)

    def _per_row(self, reduce: Callable[[Tensor, slice], Tensor]) -> Tensor:
        parts = [reduce(block, rows) for rows, block in self._blocks()]
        return torch.cat(parts, -1) if parts else torch.zeros(self.shape[:-1], device=self.device)

    def top(self, n: int) -> tuple[Tensor, Tensor]:
        """Return the n keys each query weighs most: weights and keys, each (…, t, n), heaviest first.

        Where a query may attend to fewer than n keys, the rest has weight 0 and key −1.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise build(ArgumentError, "n", "an int ≥ 1", repr(n))
        weights, keys = [], []
        for _, block in self._blocks():
            w, key = block.topk(min(n, block.shape[-1]), -1)
            missing = n - w.shape[-1]
            w, key = (torch.nn.functional.pad(x, (0, missing)) for x in (w, key))
            weights.append(w)
            keys.append(key.masked_fill(w == 0, -1))
        if not weights:
            empty = torch.zeros((*self.shape[:-1], n), device=self.device)
            return empty, empty.long()
        return torch.cat(weights, -2), torch.cat(keys, -2)

    def argmax(self) -> Tensor:
        """Return the key each query weighs most, (…, t); −1 where it may attend to nothing."""
        return self.top(1)[1][..., 0]

    def entropy(self) -> Tensor:
        """Return −Σ w log w of each query over the keys, (…, t), in nats; a sink's share is left out."""
        return self._per_row(lambda w, _: -torch.special.xlogy(w, w).sum(-1))

    def received(self) -> Tensor:
        """Return how much each key is looked at: the column sums Σ over queries of w, (…, s)."""
        total = torch.zeros((*self.shape[:-2], self.shape[-1]), device=self.device)
        for _, block in self._blocks():
            total = total + block.sum(-2)
        return total

    def mass(self, keys: Tensor | Sequence[int]) -> Tensor:
        """Return the weight each query gives to ``keys`` (indices or a boolean (s,)) together, (…, t)."""
        index = torch.as_tensor(keys, device=self.device)
        return self._per_row(lambda w, _: w[..., index].sum(-1))

    def distance(self) -> Tensor:
        """Return the mean distance Σ w |position − key| of each query, (…, t), in steps.

        Query i stands at position s − t + i (bottom-right).
        """
        t, s = self.shape[-2:]
        cols = torch.arange(s, device=self.device)

        def reduce(w: Tensor, rows: slice) -> Tensor:
            at = torch.arange(rows.start, rows.start + w.shape[-2], device=self.device) + s - t
            return (w * (at[:, None] - cols).abs()).sum(-1)

        return self._per_row(reduce)

    def pool(self, rows: int, cols: int, how: str = "mean") -> Tensor:
        """Return a rows × cols picture (…, rows, cols) of the matrix: "mean", "max" or "sum" of each cell.

        Cell (i, j) covers queries ⌊i t / rows⌋ … and keys ⌊j s / cols⌋ …; asking for more cells than
        there are entries gives the matrix itself.
        """
        if how not in ("mean", "max", "sum"):
            raise build(ArgumentError, "how", '"mean", "max" or "sum"', repr(how))
        t, s = self.shape[-2:]
        rows, cols = min(rows, t), min(cols, s)
        if min(rows, cols) < 1:
            raise build(ArgumentError, "rows, cols", "at least one cell", f"{rows}, {cols}")
        row_cell = torch.arange(t, device=self.device) * rows // t
        col_cell = torch.arange(s, device=self.device) * cols // s
        reduce = "amax" if how == "max" else "sum"
        out = torch.zeros((*self.shape[:-2], rows, cols), device=self.device)
        for at, block in self._blocks():
            by_col = col_cell.expand(block.shape)
            wide = torch.zeros((*block.shape[:-1], cols), device=self.device)
            wide.scatter_reduce_(-1, by_col, block.float(), reduce)
            by_row = row_cell[at, None].expand(wide.shape)
            out.scatter_reduce_(-2, by_row, wide, reduce)
        if how == "mean":
            out /= row_cell.bincount()[:, None] * col_cell.bincount()
        return out

    def to(self, device: torch.device | str) -> LazyMatrix:
        """Return the same matrix on another device."""
        raise NotImplementedError

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return (
            f"{type(self).__name__}(shape=({shape}), dtype={self.dtype}) — lazy: "
            "A @ v, A[..., rows, cols] and A.dense() compute"
        )


def _split(index: Any, ndim: int) -> tuple[tuple[Any, ...], Any, Any]:
    """Split an index into its leading part, rows and columns; None means all of t or s."""
    index = index if isinstance(index, tuple) else (index,)
    if any(i is None for i in index):
        raise build(ArgumentError, "index", "ints, slices, tensors and …", "None (a new axis)")
    if Ellipsis in [i if i is Ellipsis else 0 for i in index]:
        at = next(n for n, i in enumerate(index) if i is Ellipsis)
        fill = ndim - (len(index) - 1)
        index = index[:at] + (slice(None),) * fill + index[at + 1 :]
    if len(index) > ndim:
        raise build(ArgumentError, "index", f"at most {ndim} entries", len(index))
    index = index + (slice(None),) * (ndim - len(index))
    *lead, rows, cols = index
    everything = slice(None)
    while lead and isinstance(lead[-1], slice) and lead[-1] == everything:
        lead.pop()
    plain = [None if isinstance(i, slice) and i == everything else i for i in (rows, cols)]
    return tuple(lead), plain[0], plain[1]


def _positions(index: Any, size: int, name: str, device: torch.device) -> Tensor | None:
    if index is None:
        return None
    if isinstance(index, slice):
        return torch.arange(size, device=device)[index] if (index.step or 1) > 0 else (
            torch.tensor(range(size)[index], device=device, dtype=torch.long)
        )
    found = torch.as_tensor(index, device=device)
    if found.dtype is torch.bool:
        if found.shape != (size,):
            raise build(ArgumentError, "index", f"a boolean ({name}={size},)", shape_of(found))
        return found.nonzero()[:, 0]
    if found.is_floating_point() or found.ndim > 1:
        raise build(ArgumentError, "index", "integers, one axis", f"{found.dtype}, {found.ndim} axes")
    if found.numel() and (int(found.min()) < -size or int(found.max()) >= size):
        raise IndexError(f"index: expected |{name}| < {size}; got {index}.")
    return (found % size if size else found).reshape(-1)


def _take(
    tile: Callable[[Tensor | None, Tensor | None], Tensor],
    rows: Any,
    cols: Any,
    t: int,
    s: int,
    device: torch.device,
) -> Tensor:
    block = tile(_positions(rows, t, "t", device), _positions(cols, s, "s", device))
    if _drops(cols):
        block = block[..., 0]
    if _drops(rows):
        block = block[..., 0] if _drops(cols) else block[..., 0, :]
    return block


def _drops(index: Any) -> bool:
    return isinstance(index, int) or (isinstance(index, Tensor) and index.ndim == 0)


class Dense(LazyMatrix):
    """A tensor of weights (…, t, s) that somebody already has, with the same interface.

    >>> Dense(torch.eye(3)).argmax()
    tensor([0, 1, 2])
    """

    def __init__(self, weights: Tensor, labels: Labels = (None, None)) -> None:
        if weights.ndim < 2 or not weights.is_floating_point():
            raise build(
                ArgumentError, "weights", "a floating-point tensor (…, t, s)",
                f"{weights.dtype}, {shape_of(weights)}",
            )  # fmt: skip
        self.weights = weights
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

    def matmul(self, v: Tensor) -> Tensor:
        return self.weights @ v

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        return Dense(self.weights[index])

    def to(self, device: torch.device | str) -> LazyMatrix:
        return Dense(self.weights.to(device), self.labels)


class _Wrapped(LazyMatrix):
    """A matrix made of another one."""

    def __init__(self, matrix: LazyMatrix) -> None:
        self.matrix = matrix
        self.labels = matrix.labels

    @property
    def dtype(self) -> torch.dtype:
        return self.matrix.dtype

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        return type(self)(self.matrix[index])

    def to(self, device: torch.device | str) -> LazyMatrix:
        return type(self)(self.matrix.to(device))


class Transposed(_Wrapped):
    """Aᵀ, of shape (…, s, t): who looks at each key."""

    def __init__(self, matrix: LazyMatrix) -> None:
        super().__init__(matrix)
        self.labels = (matrix.labels[1], matrix.labels[0])

    @property
    def shape(self) -> tuple[int, ...]:
        *lead, t, s = self.matrix.shape
        return (*lead, s, t)

    @property
    def mT(self) -> LazyMatrix:  # noqa: N802
        return self.matrix

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        return self.matrix.tile(cols, rows).mT

    def matmul(self, v: Tensor) -> Tensor:
        """Aᵀ u (…, s, e) for u (…, t, e), summed over blocks of rows."""
        _check_product(self, v)
        *_, s, t = self.shape
        out: Tensor = v.new_zeros((s, v.shape[-1]))
        for rows, block in self.matrix._blocks():
            out = out + block.mT.to(v.dtype) @ v[..., rows, :]
        lead = torch.broadcast_shapes(self.shape[:-2], v.shape[:-2])
        return out.expand(*lead, s, v.shape[-1]) if t == 0 else out


class MeanHeads(_Wrapped):
    """The mean over the heads (axis −3)."""

    @property
    def shape(self) -> tuple[int, ...]:
        *lead, _, t, s = self.matrix.shape
        return (*lead, t, s)

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        return self.matrix.tile(rows, cols).mean(-3)

    def matmul(self, v: Tensor) -> Tensor:
        """Mean over heads of A @ v, for v (…, s, e) shared by the heads."""
        _check_product(self, v)
        return (self.matrix @ v.unsqueeze(-3)).mean(-3)

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        return MeanHeads(self.matrix[index])


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
        s = self.shape[-1]
        parts, first = [], 0
        for m in self.matrices:
            t = m.shape[-2]
            inside = None if rows is None else rows[(rows >= first) & (rows < first + t)] - first
            first += t
            if inside is not None and not len(inside):
                continue
            if cols is None:
                part = torch.nn.functional.pad(m.tile(inside), (0, s - m.shape[-1]))
            else:
                there = cols < m.shape[-1]
                kept = m.tile(inside, cols[there])
                part = kept.new_zeros((*kept.shape[:-1], len(cols)))
                part[..., there] = kept
            parts.append(part)
        block = torch.cat(parts, -2) if parts else torch.zeros((*self.shape[:-2], 0, s))
        if rows is None or len(rows) < 2 or bool((rows[1:] >= rows[:-1]).all()):
            return block
        return block.index_select(-2, rows.argsort(stable=True).argsort())

    def matmul(self, v: Tensor) -> Tensor:
        """Y (…, t, e), each call with the values it had."""
        _check_product(self, v)
        return torch.cat([m @ v[..., : m.shape[-1], :] for m in self.matrices], -2)

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        return Stacked([m[index] for m in self.matrices])

    def to(self, device: torch.device | str) -> LazyMatrix:
        return Stacked([m.to(device) for m in self.matrices])


class Merged(LazyMatrix):
    """A matrix seen by words: weights summed over the columns of a word, averaged over its rows.

    ``rows`` and ``columns`` list the positions of each word; positions in no word are left out.

    >>> A = Dense(torch.tensor([[0.2, 0.3, 0.5]]))
    >>> Merged(A, rows=[[0]], columns=[[0, 1], [2]]).dense()
    tensor([[0.5000, 0.5000]])
    """

    def __init__(
        self, matrix: LazyMatrix, rows: Sequence[Sequence[int]], columns: Sequence[Sequence[int]]
    ) -> None:
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

    def _joiner(self, groups: Sequence[Sequence[int]], size: int, mean: bool) -> Tensor:
        joiner = torch.zeros(len(groups), size, device=self.device)
        for word, group in enumerate(groups):
            for position in group:
                joiner[word, position] = 1 / len(group) if mean else 1
        return joiner

    def _pick(self, groups: Sequence[Sequence[int]], index: Tensor | None) -> list[Sequence[int]]:
        return list(groups) if index is None else [groups[i] for i in index.tolist()]

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        over = self._joiner(self._pick(self.rows, rows), self.matrix.shape[-2], mean=True)
        used = over.any(0).nonzero()[:, 0]
        block = self.matrix.tile(used)
        join = self._joiner(self._pick(self.columns, cols), self.matrix.shape[-1], mean=False)
        return over[:, used].to(block.dtype) @ block @ join.T.to(block.dtype)

    def matmul(self, v: Tensor) -> Tensor:
        """Y (…, words, e): each word's value counts for all its columns."""
        _check_product(self, v)
        join = self._joiner(self.columns, self.matrix.shape[-1], mean=False).to(v.dtype)
        over = self._joiner(self.rows, self.matrix.shape[-2], mean=True).to(v.dtype)
        return over @ (self.matrix @ (join.T @ v))

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        return Merged(self.matrix[index], self.rows, self.columns)

    def to(self, device: torch.device | str) -> LazyMatrix:
        return Merged(self.matrix.to(device), self.rows, self.columns)


def stack_rows(matrices: Sequence[LazyMatrix]) -> LazyMatrix:
    """Return the rows of several calls (…, t_i, s_i) as one lazy matrix (…, Σ t_i, max s_i)."""
    return Stacked(matrices)


def _check_product(matrix: LazyMatrix, v: Tensor) -> None:
    if not isinstance(v, Tensor):
        raise build(KindError, "v", "a tensor (…, s, e)", type(v).__name__)
    if v.ndim < 2 or v.shape[-2] != matrix.shape[-1]:
        raise build(
            ArgumentError, "v", f"shape (…, s={matrix.shape[-1]}, e)", shape_of(v),
            "v holds one row for each key",
        )  # fmt: skip
