"""`LazyMatrix`: two primitives, ``tile`` and ``matmul``, and the methods built on them.

Its statistics are in `intently.core.matrix.statistics`.
"""

from __future__ import annotations

import copy as copies
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from intently.core.kernels.operands import check_product, no_autocast
from intently.core.matrix.indexing import named, split, take
from intently.core.matrix.statistics import Statistics
from intently.errors import AbsentError, ArgumentError, KindError, MemoryRefused, RangeError, build
from intently.foundation.arrays import Numbers, as_tensor, valued

Labels: TypeAlias = tuple[tuple[str, ...] | None, tuple[str, ...] | None]


OF_QUERIES = ("q", "k", "mask", "scores", "lse", "plan")
"""What only a matrix of queries and keys has."""


class LazyMatrix(Statistics):
    """Attention weights (…, t, s) as a value: rows belong to queries and sum to 1 over keys.

    Subclasses give ``shape``, ``tile``, ``matmul``, and ``dtype`` and ``device`` or ``_like``.
    """

    labels: Labels = (None, None)
    _each: tuple[Labels, ...] = ()
    """The labels of each item of axis 0, where these differ."""
    _cast = False
    """Whether autocast was on where the matrix was made: values of products are cast then."""
    __iter__ = None
    __array_ufunc__ = None
    __hash__ = object.__hash__

    if not TYPE_CHECKING:  # checkers of types know which matrix has which

        def __getattr__(self, name: str) -> Any:
            """Refuse by name what weights alone do not give."""
            if name not in OF_QUERIES or hasattr(type(self), name):
                return object.__getattribute__(self, name)
            expected, got = "a matrix of queries and keys, as attend makes it", type(self).__name__
            cause = "what watch keeps as weights has neither; its coverage() says why"
            fix = "A[..., rows, cols], A.dense() and all statistics need the weights only"
            raise build(AbsentError, f"A.{name}", expected, got, cause, fix)

    def matmul(self, v: Tensor | Numbers) -> Tensor:
        """Y (…, t, e) = weights @ v (…, s, e); ``self._operand(v)`` checks v."""
        raise NotImplementedError

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        """Return the lazy matrix under an index of the leading axes."""
        raise NotImplementedError

    def _to(self, device: torch.device) -> LazyMatrix:
        """Return the matrix on another device, labels aside."""
        raise NotImplementedError

    def _cleared(self, v: Tensor) -> Tensor:
        """Values (…, s, e); if they hold NaN or ∞, rows that no query may attend become 0."""
        if not valued(v) or bool(v.isfinite().all()):
            return v
        return torch.where((self._viewers() > 0)[..., None], v, 0)

    # --- views ----------------------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def mT(self) -> LazyMatrix:  # noqa: N802 - PyTorch's name
        """The transpose, still lazy: ``A.mT @ u`` is streamed."""
        return Transposed(self)

    def mean_heads(self) -> LazyMatrix:
        """Return the mean over the heads (axis −3), still lazy: (…, t, s)."""
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

    def label_each(self, labels: Sequence[Labels]) -> LazyMatrix:
        """Return the same matrix (b, …, t, s) with (rows, columns) of labels for each item."""
        other = copies.copy(self)
        other._each = tuple(self[n].label(*one).labels for n, one in enumerate(labels))
        return other

    def to(self, device: torch.device | str) -> LazyMatrix:
        """Return the same matrix on another device."""
        other = self._to(torch.device(device))
        other.labels, other._each = self.labels, self._each
        return other

    def __getitem__(self, index: Any) -> Any:
        """Index leading axes lazily; index t or s for exact weights.

        Rows and columns are taken orthogonally, and an int drops its axis, as for a dense matrix:
        ``A[..., 3, :]`` are the weights of query 3. Labels that occur once name rows and columns:
        ``A["it"]`` is the row of *it*, ``A["it", "road"]`` its weight on *road*, ``A[0, "it"]`` the
        row in head 0, ``A[..., "road"]`` the column of *road*.
        """
        lead, rows, cols = split(named(index, self.ndim, self.labels), self.ndim)
        part = self
        if lead:
            try:
                part = self._lead(lead)
            except IndexError as error:
                shape = f"positions within the leading axes of shape {self.shape}"
                raise build(RangeError, "index", shape, str(error)) from None
            part.labels = self.labels
            if self._each and isinstance(lead[0], int):
                part.labels = self._each[lead[0]]
            elif self._each and isinstance(lead[0], slice):
                part._each = self._each[lead[0]]
        if rows is None and cols is None:
            return part
        return take(part.tile, rows, cols, self.shape, self.device)

    def __matmul__(self, v: Tensor | Numbers) -> Tensor:
        """Y (…, t, e) = A @ v for v (…, s, e).

        Lists and integers take the dtype of the matrix; so do floats if autocast was on when the
        matrix was made. Raises `KindError` for another dtype or device, `ArgumentError` for a shape
        that does not fit.
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
        expected = "the matrix on the left, A @ v"
        fix = "write A.mT @ u for the transposed product, or A.dense()"
        raise build(KindError, "matmul", expected, f"{type(u).__name__} on the left", fix=fix)

    def _arithmetic(self, other: Any) -> Any:
        got, fix = f"arithmetic with {type(other).__name__}", "pass A.dense(), or a part of it"
        raise build(KindError, "operand", "A @ v, the one product of a lazy matrix", got, fix=fix)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _arithmetic
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _arithmetic

    # --- everything at once ---------------------------------------------------------------------

    def dense(self, max_bytes: int = 2**30) -> Tensor:
        """All weights (…, t, s), in the dtype of q.

        Raises `MemoryRefused` if they would take more than ``max_bytes``.
        """
        size = math.prod(self.shape) * (torch.finfo(self.dtype).bits // 8)
        if size > max_bytes:
            raise build(
                MemoryRefused,
                "dense",
                f"at most max_bytes={max_bytes:,} bytes",
                f"{size:,} bytes for shape {self.shape}",
                fix="take A[..., rows, cols], A.pool(rows, cols) or A.top(n), or raise max_bytes",
            )
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
        """Export the dense weights to ``torch.as_tensor`` and other consumers of DLPack."""
        return self.dense().detach().contiguous().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return torch.empty(0, device=self.device).__dlpack_device__()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse torch functions: a lazy matrix is not a tensor."""
        name = getattr(func, "__name__", "function")
        fix = "pass A.dense(), or a part of it such as A[..., :10, :]"
        if name in ("__matmul__", "matmul", "bmm", "mm", "einsum"):
            fix = "write A @ v, or A.mT @ u for the transposed product"
            if torch.compiler.is_compiling():  # which passes both operands in no known order
                fix = "write A.matmul(v) or it.attention(q, k, v, …) in what torch.compile traces"
        raise build(KindError, name, "a tensor", "a lazy attention matrix", fix=fix)

    def _repr_html_(self) -> str:
        from intently.show.notebook import matrix_html

        return matrix_html(self)

    def _line(self) -> str:
        """Describe the matrix in one line, computing nothing."""
        shape = ", ".join(map(str, self.shape))
        return (
            f"{type(self).__name__}(shape=({shape}), dtype={self.dtype}) — lazy: "
            "A @ v, A[..., rows, cols] and A.dense() compute"
        )

    def __repr__(self) -> str:
        """Its line and, of a small matrix with labels, the table of its weights."""
        if self.labels == (None, None) and not self._each:
            return self._line()
        try:
            from intently.show.terminal import text_table

            return "\n".join(filter(None, (self._line(), text_table(self))))
        except Exception:  # changed since, or without numbers: a display never raises
            return self._line()


class Derived(LazyMatrix):
    """A matrix made of another one, ``matrix``."""

    def __init__(self, matrix: LazyMatrix) -> None:
        self.matrix = self._like = matrix
        self._cast, self.labels, self._each = matrix._cast, matrix.labels, matrix._each

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrix.shape

    def _parts(self, change: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
        """Its other arguments, with every tensor (…, n) changed."""
        return ()

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        return type(self)(self.matrix[index], *self._parts(lambda x: x[index]))

    def _to(self, device: torch.device) -> LazyMatrix:
        return type(self)(self.matrix.to(device), *self._parts(lambda x: x.to(device)))


class Transposed(Derived):
    """Aᵀ, of shape (…, s, t): the queries that look at each key."""

    def __init__(self, matrix: LazyMatrix) -> None:
        super().__init__(matrix)
        self.labels = (matrix.labels[1], matrix.labels[0])
        self._each = tuple((columns, rows) for rows, columns in matrix._each)

    @property
    def shape(self) -> tuple[int, ...]:
        *lead, t, s = self.matrix.shape
        return (*lead, s, t)

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
        """Aᵀ u in the accumulation dtype (float32 for half types), for u in any dtype.

        Without ``nan``, weights of NaN count as 0.
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


class MeanHeads(Derived):
    """The mean over the heads (axis −3)."""

    def __init__(self, matrix: LazyMatrix) -> None:
        if matrix.ndim < 3:
            expected, cause = "a matrix (…, h, t, s)", "it has no axis of heads"
            raise build(ArgumentError, "mean_heads", expected, f"shape {matrix.shape}", cause)
        super().__init__(matrix)

    @property
    def shape(self) -> tuple[int, ...]:
        *lead, _, t, s = self.matrix.shape
        return (*lead, t, s)

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
