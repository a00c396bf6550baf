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

from intently.arrays import Numbers, as_tensor
from intently.errors import ArgumentError, KindError, MemoryRefused, RangeError, build, shape_of
from intently.kernels.derivatives import differentiated, transformed
from intently.kernels.streamed import Block
from intently.masks.geometry import copied
from intently.matrix.blocks import Cells, largest
from intently.matrix.indexing import positions, split, take

BLOCK = 2**22
"""Weights that one block of a streamed statistic holds at most."""

Labels: TypeAlias = tuple[tuple[str, ...] | None, tuple[str, ...] | None]


class LazyMatrix:
    """Attention weights (…, t, s) as a value: rows belong to queries and sum to 1 over keys.

    Subclasses give ``shape``, ``dtype``, ``device``, ``tile`` and ``matmul``.
    """

    labels: Labels = (None, None)
    _cast = False
    """Whether autocast was on where the matrix was made: values of products are cast then."""
    __iter__ = None
    __array_ufunc__ = None
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

    def matmul(self, v: Tensor | Numbers) -> Tensor:
        """Y (…, t, e) = weights @ v (…, s, e); ``self._operand(v)`` checks v."""
        raise NotImplementedError

    def _allow(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor | None:
        """Which entries no mask forbids, broadcastable to (…, rows, cols); None where none is."""
        return None

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        """Return the lazy matrix under an index of the leading axes."""
        raise NotImplementedError

    def _to(self, device: torch.device) -> LazyMatrix:
        """Return the matrix on another device, labels aside."""
        raise NotImplementedError

    def _row_size(self) -> int:
        """How many weights are computed for one row."""
        return math.prod(self.shape[:-2]) * self.shape[-1]

    def _cleared(self, v: Tensor) -> Tensor:
        """Values (…, s, e), 0 where no query may look if NaN or ∞ stand among them."""
        if torch.compiler.is_compiling() or transformed() or bool(v.isfinite().all()):
            return v
        return torch.where((self._viewers() > 0)[..., None], v, 0)

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
            try:
                part = self._lead(lead)
            except IndexError as error:
                shape = f"positions within the leading axes of shape {self.shape}"
                raise build(RangeError, "index", shape, str(error)) from None
            part.labels = self.labels
        if rows is None and cols is None:
            return part
        return take(part.tile, rows, cols, self.shape, self.device)

    def __matmul__(self, v: Tensor | Numbers) -> Tensor:
        """Y (…, t, e) = A @ v for v (…, s, e).

        Lists and integers take the dtype of the matrix, as floats do where autocast was on when
        the matrix was made. Raises `KindError` for another dtype or device, `ArgumentError` for a
        shape that does not fit.
        """
        return self.matmul(v)

    def _operand(self, v: Tensor | Numbers) -> Tensor:
        """Values (…, s, e) as a tensor that fits the matrix, or raise."""
        v = as_tensor(v, "v", self)
        if self._cast and v.dtype is not torch.float64:
            v = v.to(self.dtype)
        check_product(self.shape, self.dtype, self.device, v)
        return v

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
            if torch.compiler.is_compiling():  # which hands both operands here in no known order
                fix = "write A.matmul(v) or it.attention(q, k, v, …) in what torch.compile traces"
        raise build(KindError, name, "a tensor", "a lazy attention matrix", fix=fix)

    # --- statistics, streamed over blocks of rows -----------------------------------------------

    def _blocks(self) -> Iterator[Block]:
        """Yield all weights that are not 0 as blocks of rows; a block belongs to the caller."""
        s = self.shape[-1]
        step = max(1, BLOCK // max(1, self._row_size()))
        for start in range(0, self.shape[-2] if s else 0, step):
            rows = slice(start, min(start + step, self.shape[-2]))
            index = torch.arange(rows.start, rows.stop, device=self.device)
            yield Block((), rows, slice(0, s), self.tile(index))

    def _columns(self, cols: Tensor) -> Tensor:
        """Weights (…, t, len(cols)), for those who walk over all columns."""
        return self.tile(None, cols)

    def _zeros(self, *last: int, dtype: torch.dtype | None = None) -> Tensor:
        """Zeros (…, *last) in the dtype that statistics are computed in."""
        dtype = dtype or torch.promote_types(self.dtype, torch.float32)
        return torch.zeros((*self.shape[:-2], *last), dtype=dtype, device=self.device)

    def _per_row(self, reduce: Callable[[Block], Tensor]) -> Tensor:
        found = self._zeros(self.shape[-2])
        for block in self._blocks():
            found[(*block.lead, ..., block.rows)] = reduce(block)
        return found

    def top(self, n: int) -> tuple[Tensor, Tensor]:
        """Return the n keys each query weighs most: weights and keys (…, t, n), heaviest first.

        Where a query weighs fewer than n keys, the rest has weight 0 and key −1. Of keys with
        equal weight any may come first. A query of NaN has no order: weights NaN, keys −1.
        """
        _check_count(n, "n")
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
        """Return the key each query weighs most, (…, t).

        −1 where it may attend to nothing, and where it is NaN.
        """
        keys = self._zeros(self.shape[-2], dtype=torch.long) - 1
        for block in self._blocks():
            w, key = block.weights.max(-1)
            at = (*block.lead, ..., block.rows)
            keys[at] = (key + block.cols.start).masked_fill((w == 0) | w.isnan(), -1)
        return keys

    def entropy(self) -> Tensor:
        """Return −Σ w log w of each query over the keys it may attend, (…, t), in nats.

        0 where one key takes all or there is none to attend, log n where n keys share alike. The
        weights of a sink are left out of the sum, so that w sums to less than 1 there; softcap,
        bias and mask act through w.

        Source: Shannon 1948, section 6.
        """

        def reduce(block: Block) -> Tensor:
            w = block.weights
            if differentiated((w,)):  # the slope of w log w at 0 is infinite
                w = w.masked_fill(w == 0, 1)
            return torch.special.entr(w).sum(-1)

        return self._per_row(reduce)

    def received(self, normalize: bool = False) -> Tensor:
        """Return how much each key is looked at: the column sums Σ over queries of w, (…, s).

        All keys together receive t, less what sinks and queries without keys take. With
        ``normalize`` each sum is divided by the number of queries that may see the key, which
        makes keys comparable under a causal mask; keys that none may see have 0. In a mean over
        heads a query may see what it may in one head, in a matrix of words what one of its tokens
        may.
        """
        total = self._zeros(self.shape[-1])
        for block in self._blocks():
            total[(*block.lead, ..., block.cols)] += block.weights.sum(-2)
        return total / self._viewers().clamp_min(1) if normalize else total

    def _viewers(self) -> Tensor:
        """How many queries may see each key, broadcastable to (…, s)."""
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
        counted = torch.bincount(index, minlength=self.shape[-1]) > 0

        def reduce(block: Block) -> Tensor:
            inside = counted[block.cols].nonzero()[:, 0]  # of the others not even NaN counts
            return block.weights.index_select(-1, inside).sum(-1)

        return self._per_row(reduce)

    def distance(self) -> Tensor:
        """Return the mean distance Σ w |position − key| of each query, (…, t), in steps.

        Query i stands at position s − t + i (bottom-right).
        """
        t, s = self.shape[-2:]
        every = torch.arange(max(s, t), device=self.device)

        def reduce(block: Block) -> Tensor:
            w = block.weights
            at, keys = every[block.rows].to(w.dtype) + (s - t), every[block.cols].to(w.dtype)
            return (w * (at[:, None] - keys).abs_()).sum(-1)

        return self._per_row(reduce)

    def pool(self, rows: int, cols: int, how: str = "mean") -> Tensor:
        """Return a picture (…, rows, cols) of the matrix: "mean", "max" or "sum" of each cell.

        Cell (i, j) covers queries ⌈i t / rows⌉ … ⌈(i + 1) t / rows⌉ − 1, and keys alike; asking
        for more cells than there are entries gives the matrix itself. What is masked counts as 0.
        """
        if how not in ("mean", "max", "sum"):
            raise build(ArgumentError, "how", '"mean", "max" or "sum"', repr(how))
        _check_count(rows, "rows")
        _check_count(cols, "cols")
        t, s = self.shape[-2:]
        rows, cols = min(rows, t), min(cols, s)
        out = self._zeros(rows, cols)
        if not rows * cols:
            return out
        join, reduce = (torch.maximum, "amax") if how == "max" else (torch.add, "sum")
        across, down = Cells(s, cols, self.device), Cells(t, rows, self.device)
        if how == "max":
            out = out - math.inf
        for block in self._blocks():
            picture = down.reduced(block.weights, block.rows, reduce)
            picture = across.reduced(picture.mT, block.cols, reduce).mT
            at = (*block.lead, ..., down.of(block.rows), across.of(block.cols))
            out[at] = join(out[at].clone(), picture)
        if how == "mean":
            return out / (down.sizes[:, None] * across.sizes)
        return out.masked_fill(out.isneginf(), 0)

    def _repr_html_(self) -> str:
        from intently.show.notebook import matrix_html

        return matrix_html(self)

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


def check_product(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, v: Any) -> None:
    """Raise unless v is a tensor (…, s, e) for a matrix of this shape, dtype and device."""
    if v.dtype != dtype or v.device != device:
        raise build(
            KindError, "v", f"dtype and device of the matrix, {dtype} on {device}",
            f"{v.dtype} on {v.device}",
            fix="convert it with .to(…), an array with .astype(…); lists and integers just fit",
        )  # fmt: skip
    if v.ndim < 2 or v.shape[-2] != shape[-1]:
        raise build(
            ArgumentError, "v", f"shape (…, s={shape[-1]}, e)", shape_of(v),
            "v holds one row for each key",
        )  # fmt: skip


def _check_count(n: Any, name: str) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise build(ArgumentError, name, "an int ≥ 1", repr(n))
