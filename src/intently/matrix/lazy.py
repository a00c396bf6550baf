"""`LazyMatrix`: two primitives, ``tile`` and ``matmul``, and all that is written on them.

Every statistic streams blocks of rows through ``tile`` and never holds more than one block.
"""

from __future__ import annotations

import copy as copies
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intently.errors import ArgumentError, KindError, MemoryRefused, build
from intently.matrix.indexing import positions, split, take

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

    # --- what a subclass gives ------------------------------------------------------------------

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

    def _to(self, device: torch.device) -> LazyMatrix:
        """Return the matrix on another device, labels aside."""
        raise NotImplementedError

    def _row_size(self) -> int:
        """How many weights are computed for one row."""
        return math.prod(self.shape[:-2]) * self.shape[-1]

    # --- views ----------------------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        """How many axes the matrix has."""
        return len(self.shape)

    @property
    def mT(self) -> LazyMatrix:  # noqa: N802 - PyTorch's name
        """The transpose, still lazy: ``A.mT @ u`` is streamed."""
        from intently.matrix.views import Transposed

        return Transposed(self)

    def mean_heads(self) -> LazyMatrix:
        """Return the mean over the heads (axis −3), still lazy: (…, t, s)."""
        from intently.matrix.views import MeanHeads

        return MeanHeads(self)

    def label(
        self, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None
    ) -> LazyMatrix:
        """Return the same matrix with labels for rows (t strings) and columns (s strings).

        Raises `ArgumentError` where there are more or fewer labels than rows or columns.
        """
        t, s = self.shape[-2:]
        for name, given, size in (("rows", rows, t), ("columns", columns, s)):
            if given is not None and len(given) != size:
                raise build(ArgumentError, name, f"{size} labels", f"{len(given)}")
        other = copies.copy(self)
        other.labels = (
            self.labels[0] if rows is None else tuple(rows),
            self.labels[1] if columns is None else tuple(columns),
        )
        return other

    def to(self, device: torch.device | str) -> LazyMatrix:
        """Return the same matrix on another device."""
        other = self._to(torch.device(device))
        other.labels = self.labels
        return other

    def __getitem__(self, index: Any) -> Any:
        """Index leading axes lazily; index t or s for exact weights.

        Rows and columns are taken orthogonally, and an int drops its axis, as for a dense matrix:
        ``A[..., 3, :]`` are the weights of query 3.
        """
        lead, rows, cols = split(index, self.ndim)
        part = self
        if lead:
            part = self._lead(lead)
            part.labels = self.labels
        if rows is None and cols is None:
            return part
        return take(part.tile, rows, cols, self.shape, self.device)

    def __matmul__(self, v: Tensor) -> Tensor:
        """Y (…, t, e) = A @ v for v (…, s, e)."""
        return self.matmul(v)

    def __rmatmul__(self, u: Any) -> Any:
        raise build(
            KindError, "matmul", "the matrix on the left, A @ v", f"{type(u).__name__} on the left",
            fix="write A.mT @ u for the transposed product, or A.dense()",
        )  # fmt: skip

    def _arithmetic(self, other: Any) -> Any:
        raise build(
            KindError, "operand", "A @ v, the one product of a lazy matrix",
            f"arithmetic with {type(other).__name__}", fix="hand in A.dense(), or a part of it",
        )  # fmt: skip

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _arithmetic
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _arithmetic

    # --- everything at once ---------------------------------------------------------------------

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
        if copy is False:
            raise build(
                ArgumentError, "copy", "None or True", copy, "lazy weights have to be computed"
            )
        dense = self.dense().detach().cpu()
        array = (dense.float() if dense.dtype is torch.bfloat16 else dense).numpy()
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        """Hand the dense weights to ``torch.as_tensor`` and other readers of DLPack."""
        return self.dense().detach().contiguous().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return torch.empty(0, device=self.device).__dlpack_device__()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse torch functions: a lazy matrix is no tensor."""
        name = getattr(func, "__name__", "function")
        fix = "hand in A.dense(), or a part of it such as A[..., :10, :]"
        if name in ("__matmul__", "matmul", "bmm", "mm", "einsum"):
            fix = "write A @ v, or A.mT @ u for the transposed product"
        raise build(KindError, name, "a tensor", "a lazy attention matrix", fix=fix)

    # --- statistics, streamed over blocks of rows -----------------------------------------------

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        t = self.shape[-2]
        step = max(1, BLOCK // max(1, self._row_size()))
        for start in range(0, t, step):
            rows = torch.arange(start, min(t, start + step), device=self.device)
            yield slice(start, start + len(rows)), self.tile(rows)

    def _per_row(self, reduce: Callable[[Tensor, slice], Tensor]) -> Tensor:
        parts = [reduce(block, rows) for rows, block in self._blocks()]
        return torch.cat(parts, -1) if parts else torch.zeros(self.shape[:-1], device=self.device)

    def top(self, n: int) -> tuple[Tensor, Tensor]:
        """Return the n keys each query weighs most: weights and keys (…, t, n), heaviest first.

        Where a query weighs fewer than n keys, the rest has weight 0 and key −1.
        """
        _check_count(n, "n")
        weights, keys = [], []
        for _, block in self._blocks():
            w, key = block.topk(min(n, block.shape[-1]), -1)
            missing = n - w.shape[-1]
            w, key = F.pad(w, (0, missing)), F.pad(key, (0, missing))
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
        """Return −Σ w log w of each query over the keys, (…, t), in nats.

        A sink's own share is left out of the sum.
        """

        def reduce(w: Tensor, _: slice) -> Tensor:
            return -(w * w.clamp_min(torch.finfo(w.dtype).tiny).log()).sum(-1)

        return self._per_row(reduce)

    def received(self) -> Tensor:
        """Return how much each key is looked at: the column sums Σ over queries of w, (…, s)."""
        total = torch.zeros((*self.shape[:-2], self.shape[-1]), device=self.device)
        for _, block in self._blocks():
            total = total + block.sum(-2)
        return total

    def mass(self, keys: Tensor | Sequence[int]) -> Tensor:
        """Return the weight of each query on ``keys`` together, (…, t).

        ``keys`` are positions or a boolean (s,).
        """
        given = torch.as_tensor(keys)
        given = given if given.numel() else given.long()
        index = positions(given, self.shape[-1], "s", self.device)
        return self._per_row(lambda w, _: w[..., index].sum(-1))

    def distance(self) -> Tensor:
        """Return the mean distance Σ w |position − key| of each query, (…, t), in steps.

        Query i stands at position s − t + i (bottom-right).
        """
        t, s = self.shape[-2:]
        cols = torch.arange(s, device=self.device)

        def reduce(w: Tensor, rows: slice) -> Tensor:
            at = torch.arange(rows.start, rows.stop, device=self.device) + s - t
            return (w * (at[:, None] - cols).abs()).sum(-1)

        return self._per_row(reduce)

    def pool(self, rows: int, cols: int, how: str = "mean") -> Tensor:
        """Return a picture (…, rows, cols) of the matrix: "mean", "max" or "sum" of each cell.

        Cell (i, j) covers queries ⌈i t / rows⌉ … ⌈(i + 1) t / rows⌉ − 1, and keys alike; asking
        for more cells than there are entries gives the matrix itself.
        """
        if how not in ("mean", "max", "sum"):
            raise build(ArgumentError, "how", '"mean", "max" or "sum"', repr(how))
        _check_count(rows, "rows")
        _check_count(cols, "cols")
        t, s = self.shape[-2:]
        rows, cols = min(rows, t), min(cols, s)
        dtype = torch.promote_types(self.dtype, torch.float32)
        if not rows * cols:
            return torch.zeros((*self.shape[:-2], rows, cols), dtype=dtype, device=self.device)
        row_cell = torch.arange(t, device=self.device) * rows // t
        col_cell = torch.arange(s, device=self.device) * cols // s
        reduce, start = ("amax", -math.inf) if how == "max" else ("sum", 0.0)
        lead, options = self.shape[:-2], {"dtype": dtype, "device": self.device}
        out = torch.full((*lead, rows, cols), start, **options)
        for at, block in self._blocks():
            wide = torch.full((*block.shape[:-1], cols), start, **options).scatter_reduce(
                -1, col_cell.expand(block.shape), block.to(dtype), reduce
            )
            out = out.scatter_reduce(-2, row_cell[at, None].expand(wide.shape), wide, reduce)
        if how == "mean":
            out = out / (row_cell.bincount()[:, None] * col_cell.bincount())
        return out

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return (
            f"{type(self).__name__}(shape=({shape}), dtype={self.dtype}) — lazy: "
            "A @ v, A[..., rows, cols] and A.dense() compute"
        )


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Autocast counts where a matrix is made, not where it is evaluated."""
    return torch.autocast(device.type, enabled=False) if in_autocast(device) else nullcontext()


def in_autocast(device: torch.device) -> bool:
    """Whether autocast is on for a kind of device that has it."""
    return device.type in ("cpu", "cuda") and torch.is_autocast_enabled(device.type)


def _check_count(n: Any, name: str) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise build(ArgumentError, name, "an int ≥ 1", repr(n))
