"""Biases as values, added to the scores before the mask and the softmax.

A bias is made without knowing t and s; tiles of it are evaluated later, when the `Geometry` of the
matrix is known, so nothing of size t × s is built. By default, query i of t is at position s − t +
i, as in every mask. Biases add with ``+``:

>>> import torch
>>> alibi(8) + relative_buckets(torch.zeros(32, 8))
alibi(8) + relative_buckets(32×8 tensor)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from intently.core.masks.geometry import (
    Cut,
    Geometry,
    Integers,
    InTiles,
    JoinedRules,
    MaskRule,
    OfTensor,
    Picked,
    Standing,
    as_offset,
    check_broadcast,
    check_device,
    cut_left,
    cut_right,
    first_of_run,
    pick,
    written,
)
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import Kind, Numbers, as_tensor
from intently.foundation.checks import whole_number
from intently.foundation.field_names import answered
from intently.foundation.on_demand import listed

__all__ = ["Bias", "TensorBias", "alibi", "as_bias", "relative_buckets"]

__dir__ = listed(__name__)


class Bias(MaskRule):
    """A rule that gives the number added to the score of each query and key."""

    shown = ("at", "tile")

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Bias of some rows and columns, broadcastable to (…, len(rows), len(cols)).

        It is differentiable in the tensors of the rule. Without ``dtype``, the result has the
        rule's own dtype: float64 for numbers computed from a formula.
        """
        raise NotImplementedError

    def picked(self, index: Tensor, *lead: int) -> Bias:
        """Return the bias at picked indices of the leading axes."""
        return PickedBias(self, index, *lead)

    def _repr_html_(self) -> str:
        from intently.show.notebook import bias_html

        return bias_html(self)

    def __add__(self, other: Bias | Tensor | Numbers) -> Bias:
        """The sum of both biases."""
        return Sum(self, as_bias(other))

    def __radd__(self, other: Tensor | Numbers) -> Bias:
        return Sum(as_bias(other), self)


class TensorBias(OfTensor, Bias):
    """A tensor that broadcasts to (…, h, t, s) as NumPy does; its gradient has its own shape.

    Arrays, lists and integers are copied. Raises `KindError` for values that are not numbers:
    booleans are masks.

    >>> TensorBias(torch.zeros(4, 1, 6))
    TensorBias(4×1×6 tensor)
    """

    def __init__(self, tensor: Tensor | Numbers, like: Kind | None = None) -> None:
        tensor = as_tensor(tensor, "bias", like)
        super().__init__(tensor)
        self.tensor = tensor

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        x = self.entries(g, rows, cols)
        return x if dtype is None else x.to(dtype)

    def check(self, g: Geometry) -> None:
        check_broadcast(self.tensor, g, "bias")

    def part(self, cut: Cut, g: Geometry) -> TensorBias:
        return TensorBias(cut_right(self.tensor, cut)) if self.tensor.ndim > 2 else self

    def __repr__(self) -> str:
        return f"TensorBias({shown(self.tensor)})"


class Sum(JoinedRules[Bias], Bias):
    """``left + right``."""

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        return self.left.tile(g, rows, cols, dtype) + self.right.tile(g, rows, cols, dtype)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return self.left.at(g, lead, i, j) + self.right.at(g, lead, i, j)

    def __repr__(self) -> str:
        right = f"({self.right!r})" if isinstance(self.right, Sum) else repr(self.right)
        return f"{self.left!r} + {right}"


class PickedBias(Picked[Bias], Bias):
    """The bias at picked leading indices."""

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        return self.taken(self.inner.tile(self.whole(g), rows, cols, dtype))


def as_bias(bias: Bias | Tensor | Numbers, like: Kind | None = None) -> Bias:
    """Return a bias unchanged, numbers as `TensorBias` with the dtype and device of `as_tensor`."""
    return bias if isinstance(bias, Bias) else TensorBias(bias, like)


def shown(tensor: Tensor) -> str:
    """Describe a tensor by its shape."""
    return f"{'×'.join(map(str, tensor.shape)) or 'scalar'} tensor"


class ByDistance(Standing, Bias):
    """A bias that depends only on the head and the distance, key position − query position.

    A tile of n rows and m columns then holds only n + m − 1 numbers per head, one per diagonal.
    """

    def profile(self, g: Geometry, distance: Tensor, dtype: torch.dtype | None) -> Tensor:
        """Bias (…, h, n) of distances (…, 1, n) or (n,); (n,) where ``g`` has no heads."""
        raise NotImplementedError

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        n, m = rows.shape[0], cols.shape[0]
        first, left = first_of_run(rows), first_of_run(cols)
        start = self.start(g)
        start = start[..., 0] if isinstance(start, Tensor) else start
        if first is None or left is None:
            apart = (cols - rows[:, None]).flatten() - start
            found = self.profile(g, apart, dtype)
            return found.reshape(*found.shape[:-1], n, m)
        apart = torch.arange(left - first - n + 1, left - first + m, device=g.device) - start
        return self.profile(g, apart, dtype).unfold(-1, m, 1).flip(-2)

    def _cut_offset(self, cut: Cut) -> int | Tensor | None:
        return cut_left(self.offset, cut) if isinstance(self.offset, Tensor) else self.offset

    def _check(self, g: Geometry, tensor: Tensor | None, name: str, heads: int | None) -> None:
        if tensor is not None:
            check_device(tensor, name, g.device)
        h = g.lead[-1] if g.lead else 1
        if heads not in (None, h):
            got = f"{heads} heads" if tensor is None else shape_of(tensor)
            expected = f"one entry for each head of the matrix, h={h}"
            raise build(ArgumentError, name, expected, got, "heads are axis −3")
        if self.offset is not None:
            self.start(g)

    def _offset_shown(self) -> str:
        return "" if self.offset is None else f"offset={written(self.offset)}"


class _Alibi(ByDistance):
    def __init__(
        self, heads: int | None, slopes: Tensor | None, offset: int | Tensor | None
    ) -> None:
        super().__init__(heads, slopes, offset)
        self.heads, self.slopes, self.offset = heads, slopes, offset

    def profile(self, g: Geometry, distance: Tensor, dtype: torch.dtype | None) -> Tensor:
        slopes = self.slopes
        if slopes is None:
            slopes = self._of(torch.arange(self._count(g), device=g.device), g, torch.float64)
        if dtype is None:
            dtype = torch.promote_types(slopes.dtype, torch.float32)
        slopes = slopes.to(dtype)
        slopes = slopes[:, None] if g.lead and slopes.ndim else slopes.reshape(-1)
        return -slopes * distance.abs().to(dtype)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        apart = (j - self.position(g, lead, i)).abs()
        if self.slopes is None:
            return -self._of(lead[-1] if lead else 0 * i, g, torch.float32) * apart
        return -pick(g, self.slopes, lead[-1:]) * apart

    def check(self, g: Geometry) -> None:
        name = "heads" if self.slopes is None else "slopes"
        count = self.heads
        if self.slopes is not None and self.slopes.ndim:
            count = self.slopes.shape[0]
        self._check(g, self.slopes, name, count)

    def part(self, cut: Cut, g: Geometry) -> _Alibi:
        heads, slopes = self.heads, self.slopes
        if slopes is not None:
            slopes = cut_left(slopes, cut[-1:])
        elif cut and cut[-1] not in (slice(None), slice(0, g.lead[-1])):
            some = torch.arange(g.lead[-1], device=g.device)[cut[-1]]
            heads, slopes = None, self._of(some, g, torch.float64)
        return _Alibi(heads, slopes, self._cut_offset(cut))

    def _count(self, g: Geometry) -> int:
        return self.heads or (int(g.lead[-1]) if g.lead else 1)  # in a trace it is a tensor

    def _of(self, head: Tensor, g: Geometry, dtype: torch.dtype) -> Tensor:
        """Slope of each head: 2^(−8i/n), then every other slope of 2n heads, n a power of two."""
        n = 1 << (max(1, self._count(g)).bit_length() - 1)
        number = (head + 1).to(dtype)
        first = torch.exp2(-8 * number / n)
        if n == self._count(g):
            return first
        return torch.where(head < n, first, torch.exp2(-4 * (2 * (number - n) - 1) / n))

    def __repr__(self) -> str:
        slopes = "" if self.slopes is None else f"slopes={written(self.slopes)}"
        heads = "" if self.heads is None else str(self.heads)
        return f"alibi({', '.join(x for x in (heads, slopes, self._offset_shown()) if x)})"


class _Buckets(ByDistance):
    def __init__(
        self, table: Tensor, max_distance: int, bidirectional: bool, offset: int | Tensor | None
    ) -> None:
        super().__init__(table, max_distance, bidirectional, offset)
        self.table, self.offset = table, offset
        self.max_distance, self.bidirectional = max_distance, bidirectional
        self._side = table.shape[0] // 2 if bidirectional else table.shape[0]
        self._edges = _edges(self._side, max_distance)

    def profile(self, g: Geometry, distance: Tensor, dtype: torch.dtype | None) -> Tensor:
        edges = torch.tensor(self._edges, dtype=distance.dtype, device=g.device)
        bucket = torch.bucketize(self._away(distance), edges, right=True)
        bucket = bucket + self._ahead(distance)
        table = self.table if dtype is None else self.table.to(dtype)
        if not g.lead:
            return table[bucket, 0]
        heads = torch.arange(table.shape[1], device=g.device)
        return table[bucket.reshape(*bucket.shape[:-1] or (1,), -1), heads[:, None]]

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        apart = j - self.position(g, lead, i)
        away, bucket = self._away(apart), self._ahead(apart)
        for edge in self._edges:
            bucket = bucket + (away >= edge).long()
        return pick(g, self.table, (bucket, lead[-1] if lead else bucket))

    def check(self, g: Geometry) -> None:
        h = self.table.shape[1]
        self._check(g, self.table, "table", None if h == 1 else h)

    def part(self, cut: Cut, g: Geometry) -> _Buckets:
        table = cut_left(self.table.mT, cut[-1:]).reshape(-1, self.table.shape[0]).mT
        return _Buckets(table, self.max_distance, self.bidirectional, self._cut_offset(cut))

    def _away(self, distance: Tensor) -> Tensor:
        """Distance to the key; if unidirectional, keys ahead count as distance 0."""
        return distance.abs() if self.bidirectional else (-distance).clamp(min=0)

    def _ahead(self, distance: Tensor) -> Tensor:
        """The first bucket on the key's side of the query."""
        return (distance > 0).long() * (self._side if self.bidirectional else 0)

    def __repr__(self) -> str:
        far = "" if self.max_distance == 128 else f"max_distance={self.max_distance}"
        sides = "" if self.bidirectional else "bidirectional=False"
        parts = (shown(self.table), far, sides, self._offset_shown())
        return f"relative_buckets({', '.join(x for x in parts if x)})"


@answered
def alibi(
    heads: int | None = None,
    slopes: Tensor | Sequence[float] | None = None,
    offset: int | Integers | None = None,
) -> Bias:
    """−slope · |distance|: each head attends less to distant keys, with its own slope.

    Without ``heads``, their number is that of the matrix. The slopes are 2^(−8i/h) for i = 1 … h if
    h is a power of two, else the slopes for the next smaller power n, followed by every other slope
    for 2n heads. ``slopes`` (h,) or () replaces them (a tensor can be learned). ``offset`` is the
    position of query 0, an int or a tensor (b,); s − t unless given. Raises `ArgumentError` if both
    are given, or if the matrix has another number of heads.

    Source: Press et al. 2022, "Train Short, Test Long", section 3.

    >>> g = Geometry((2,), 3, 3, torch.device("cpu"))
    >>> alibi().tile(g, torch.arange(3), torch.arange(3), torch.float32)[0]
    tensor([[-0.0000, -0.0625, -0.1250],
            [-0.0625, -0.0000, -0.0625],
            [-0.1250, -0.0625, -0.0000]])
    """
    if heads is not None:
        whole_number(heads, "heads", 1)
    if slopes is not None:
        if heads is not None:
            expected, cause = "either heads or slopes", "slopes hold one entry for each head"
            raise build(ArgumentError, "slopes", expected, f"heads={heads} and slopes", cause)
        slopes = _floats(slopes, "slopes")
        if slopes.ndim > 1:
            raise build(ArgumentError, "slopes", "shape (h,) or ()", shape_of(slopes))
    return _Alibi(heads, slopes, as_offset(offset))


@answered
def relative_buckets(
    table: Tensor,
    *,
    max_distance: int = 128,
    bidirectional: bool = True,
    offset: int | Integers | None = None,
) -> Bias:
    """table[bucket, h]: a learned number for each head and each bucket of distances.

    ``table`` has shape (buckets, h), or (buckets, 1) for all heads; it gets gradients. Half of the
    buckets hold one distance each, the other half covers the distances up to ``max_distance`` in
    logarithmic steps; the last bucket takes everything beyond. ``bidirectional`` uses the second
    half of the table for keys ahead of the query; otherwise these keys share the bucket of distance
    0 (a decoder does not see them). ``offset`` is the position of query 0, an int or a tensor (b,);
    s − t unless given. Raises `ArgumentError` for a table of a different shape, too few buckets, or
    a ``max_distance`` within the buckets of one distance.

    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 2.1.

    >>> g = Geometry((1,), 1, 6, torch.device("cpu"))
    >>> past = relative_buckets(torch.arange(4.0)[:, None], max_distance=5, bidirectional=False)
    >>> past.tile(g, torch.arange(1), torch.arange(6))
    tensor([[[3., 3., 2., 2., 1., 0.]]])
    """
    table = _floats(table, "table")
    if table.ndim != 2:
        raise build(ArgumentError, "table", "shape (buckets, h)", shape_of(table))
    n = table.shape[0]
    if n < 2 or (bidirectional and (n % 2 or n < 4)):
        least = "an even number ≥ 4" if bidirectional else "at least 2"
        cause = "one half is for keys before the query, the other for those ahead of it"
        expected = f"shape (buckets, h) with {least} of buckets"
        raise build(
            ArgumentError, "table", expected, shape_of(table), cause if bidirectional else None
        )
    single = (n // 2 if bidirectional else n) // 2
    whole_number(max_distance, "max_distance", single + 1)
    return _Buckets(table, max_distance, bool(bidirectional), as_offset(offset))


def _edges(n: int, max_distance: int) -> tuple[int, ...]:
    """The smallest distance of each of n buckets except the first.

    Bucket m + k, m = n // 2, begins at m · (max_distance / m)^(k / (n − m)).
    """
    m = n // 2
    log = [m * (max_distance / m) ** (k / (n - m)) for k in range(1, n - m)]
    return (*range(1, m + 1), *(-int(-(x - 1e-9 * x) // 1) for x in log))


def _floats(x: Tensor | Sequence[float], name: str) -> Tensor:
    if not isinstance(x, Tensor):
        try:
            x = torch.tensor(x, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            raise build(KindError, name, "a floating-point tensor", repr(x)) from None
    if not x.is_floating_point():
        raise build(KindError, name, "a floating-point tensor", f"dtype {x.dtype}")
    return x


class TiledBias(InTiles, Bias):
    """A bias made of ``tiles`` (n, r, c); ``index`` (…, R, C) says which stands where."""

    argument, word = "bias", "tiled bias "

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        block = self.entries(rows, cols)
        return block if dtype is None else block.to(dtype)
