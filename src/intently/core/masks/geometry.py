"""What masks and biases share: the matrix they are asked about, and the base classes of rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import hidden, plain, valued
from intently.foundation.values import Value

Integers: TypeAlias = Tensor | np.ndarray | Sequence[int]
"""One for each row of a batch; lists and arrays are copied."""


class Geometry(NamedTuple):
    """The geometry of the matrix under a mask: its leading axes, t, s and device."""

    lead: tuple[int, ...]
    t: int
    s: int
    device: torch.device

    @property
    def shape(self) -> tuple[int, ...]:
        """(…, t, s)."""
        return (*self.lead, self.t, self.s)

    def align(self, per_row: Tensor, name: str) -> Tensor:
        """Align a tensor with the leftmost leading axes: (b,) becomes (b, 1, …, 1, 1)."""
        n = per_row.ndim
        want = self.lead[:n]
        if n > len(self.lead) or any(a not in (1, b) for a, b in zip(per_row.shape, want)):
            expected = f"a shape that matches the leftmost leading axes {self.lead}"
            cause = "lengths, offsets and ids hold one entry per batch row (b,)"
            raise build(ArgumentError, name, expected, shape_of(per_row), cause)
        return per_row.to(self.device).reshape(*per_row.shape, *(1,) * (len(self.lead) - n + 2))


class Standing:
    """A rule about query positions: query i is at ``offset`` + i, or at s − t + i if None."""

    offset: int | Tensor | None

    def start(self, g: Geometry) -> int | Tensor:
        """Position of query 0: an int, or (…, 1, 1) where it differs by row."""
        if isinstance(self.offset, Tensor):
            return g.align(self.offset, "offset")
        start = g.s - g.t if self.offset is None else self.offset
        return start.reshape(1, 1) if isinstance(start, Tensor) else start  # sizes of a trace

    def position(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor) -> Tensor:
        """Positions of single queries, where ``lead`` indexes the axes of ``g.lead``."""
        if isinstance(self.offset, Tensor):
            return i + pick(g, self.offset, lead[: self.offset.ndim])
        return i + (g.s - g.t if self.offset is None else self.offset)


Cut = tuple[slice | int, ...]
"""One slice (or an int, which drops its axis) for each leading axis of a matrix."""


def cut_left(x: Tensor, cut: Cut) -> Tensor:
    """Slice the axes of x, aligned with the leftmost leading axes; axes of size 1 stay whole."""
    return x[_cut(x.shape, cut)]


def cut_right(x: Tensor, cut: Cut) -> Tensor:
    """Cut the axes of x (…, t, s) before the last two, which stand for the rightmost leading axes.

    Axes that x lacks are ignored; axes of size 1 stay whole.
    """
    lead = max(0, x.ndim - 2)
    return x[_cut(x.shape[:lead], cut[len(cut) - lead :])]


def _cut(shape: Sequence[int], cut: Cut) -> Cut:
    return tuple(
        c if size != 1 or is_empty(c) else slice(None) if isinstance(c, slice) else 0
        for size, c in zip(shape, cut)
    )


def is_empty(cut: slice | int) -> bool:
    """Whether a slice with explicit ends is empty."""
    return isinstance(cut, slice) and cut.stop is not None and cut.start == cut.stop


def pick(g: Geometry, x: Tensor, index: Sequence[Tensor]) -> Tensor:
    """Entries of x at one index tensor per axis; an axis of size 1 serves every index."""
    x = x.to(g.device)
    kept = tuple(n for n, size in zip(index, x.shape) if size != 1)
    for axis in reversed(range(x.ndim)):
        if x.shape[axis] == 1:
            x = x.select(axis, 0)
    return x[kept] if kept else x


def lengths_may_change() -> bool:
    """Whether operations are recorded for other lengths, too: by `torch.jit.trace` or an export."""
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting()
    return torch._C._is_tracing()


def first_of_run(index: Tensor) -> int | None:
    """The first of the consecutive numbers in an index.

    None if they are not consecutive, or if the check would synchronise an accelerator or break a
    graph.
    """
    if not valued(index) or index.device.type != "cpu" or not len(index):
        return None
    first = int(index[0])
    run = torch.arange(first, first + len(index), dtype=index.dtype, device=index.device)
    return first if torch.equal(index, run) else None


def entries(x: Tensor, axis: int, index: Tensor) -> Tensor:
    """Entries of an axis, none where it has size 1: a view where they are consecutive."""
    if x.shape[axis] == 1:
        return x
    first = first_of_run(index)
    return x.index_select(axis, index) if first is None else x.narrow(axis, first, len(index))


def written(x: int | Tensor | None) -> str:
    """Write a number or a tensor as reprs do: small tensors as lists, large ones by their shape."""
    if not isinstance(x, Tensor):
        return str(x)
    return str(x.tolist()) if x.numel() <= 64 else f"{'×'.join(map(str, x.shape))} tensor"


def check_device(
    x: Tensor, name: str, device: torch.device, what: str = "a floating-point tensor"
) -> None:
    """Raise unless a tensor is on the device of q."""
    if x.device != device:
        expected, got = f"{what} on the device of q, {device}", f"{x.dtype} on {x.device}"
        fix = "move it once with .to(…), not in every call"
        raise build(KindError, name, expected, got, fix=fix)


def two_axes(x: Tensor) -> Tensor:
    """The tensor with at least two axes."""
    return x.reshape((1,) * max(0, 2 - x.ndim) + tuple(x.shape))


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether a tensor of one shape can be expanded to the other."""
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(shape[::-1], to[::-1]))


def check_broadcast(
    tensor: Tensor, g: Geometry, name: str, what: str = "a floating-point tensor"
) -> None:
    """Raise unless ``tensor`` is on the device of q and broadcasts to (…, t, s).

    A 3-D (b, t, s) is refused with advice.
    """
    if tensor.device != g.device:
        check_device(tensor, name, g.device, what)
    shape, want = tuple(tensor.shape), g.shape
    expected, cause, fix = f"a shape that broadcasts to (…, t, s) = {want}", None, None
    if len(shape) == 3 and len(want) == 4 and shape[0] not in (1, want[1]) and shape[0] == want[0]:
        expected = f"a shape that broadcasts to (b, h, t, s) = {want}"
        cause = "its first axis is b, where broadcasting looks for h"
        fix = "use m[:, None], shape (b, 1, t, s)"
    elif broadcasts(shape, want):
        return
    elif len(shape) == 2 and len(want) > 2 and shape == (want[0], want[-1]):
        cause = "it holds one entry per batch row and key, (b, s)"
        fix = f"use m[:, {'None, ' * (len(want) - 3)}None]"
        fix = f"pass it.padding(m), or {fix}" if tensor.dtype is torch.bool else fix
    raise build(ArgumentError, name, expected, shape_of(tensor), cause, fix)


def copied(value: Any, name: str, expected: str) -> Tensor:
    """Return a list or a NumPy array as a tensor that shares nothing with it."""
    try:
        inner = value if isinstance(value, list | tuple) else (value,)
        if not any(isinstance(x, np.ndarray) for x in inner):
            return torch.tensor(value, device="cpu")
        array = np.array(value, order="C")
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
    except (TypeError, ValueError, RuntimeError):
        found = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:80]}…"
        raise build(KindError, name, expected, found) from None


def as_offset(offset: int | Integers | None) -> int | Tensor | None:
    """Return an offset as None, an int or integers (b,); lists and NumPy arrays are copied."""
    if offset is None or (isinstance(offset, int) and not isinstance(offset, bool)):
        return offset
    return integers(offset, "offset")


def integers(tensor: Any, name: str) -> Tensor:
    """Return a tensor of integers; lists and NumPy arrays are copied."""
    if not isinstance(tensor, Tensor):
        tensor = copied(tensor, name, "integers")
        tensor = tensor if tensor.numel() else tensor.long()  # of an empty batch
    elif not plain(tensor):
        raise hidden(tensor, name)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool:
        raise build(KindError, name, "integers", f"dtype {tensor.dtype}")
    return tensor


class MaskRule(Value):
    """A rule for each query and key: a mask or a bias."""

    shown: ClassVar[tuple[str, ...]] = ()
    """The methods that `dir` lists; the others serve kernels and recordings."""

    def __dir__(self) -> list[str]:
        return [*self.shown, *(name for name in super().__dir__() if name.startswith("__"))]

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        """The rule at single entries: index tensors, one for each axis of (…, t, s).

        They broadcast together; only arithmetic, comparisons and indexing are used, so that
        FlexAttention can trace the rule.
        """
        raise NotImplementedError

    def check(self, g: Geometry) -> None:
        """Raise `ArgumentError` or `KindError` if the rule does not fit the matrix ``g``."""

    def part(self, cut: Cut, g: Geometry) -> Any:
        """The same rule for the matrix whose leading axes were cut.

        ``cut`` has one slice, or one int which drops its axis, for each leading axis of ``g``. The
        tensors of the rule are aligned with the leftmost leading axes unless a subclass differs.
        """
        return self.replaced(lambda x: cut_left(x, cut))

    def picked(self, index: Tensor, *lead: int) -> Any:
        """The rule at picked indices of the leading axes ``lead``."""
        raise NotImplementedError


class OfTensor(MaskRule):
    """A rule that is one ``tensor``, which broadcasts to (…, t, s) as NumPy does."""

    tensor: Tensor

    def laid(self, g: Geometry) -> Tensor:
        """The tensor with at least two axes, broadcastable to (…, t, s)."""
        return two_axes(self.tensor)

    def entries(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        """Some rows and columns of it, first those that leave less."""
        x = self.laid(g)
        picks = [(-2, rows), (-1, cols)]
        if len(rows) * x.shape[-1] > len(cols) * x.shape[-2]:
            picks.reverse()
        for axis, index in picks:
            x = entries(x, axis, index)
        return x

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return pick(g, self.tensor, (*lead, i, j)[len(lead) + 2 - self.tensor.ndim :])


R = TypeVar("R", bound=MaskRule)


class JoinedRules(MaskRule, Generic[R]):
    """Two rules joined into one."""

    def __init__(self, left: R, right: R) -> None:
        super().__init__(left, right)
        self.left, self.right = left, right

    def check(self, g: Geometry) -> None:
        """Check both rules."""
        self.left.check(g)
        self.right.check(g)

    def part(self, cut: Cut, g: Geometry) -> Any:
        """Return the parts of both, joined."""
        return type(self)(self.left.part(cut, g), self.right.part(cut, g))


class Over(MaskRule, Generic[R]):
    """A mask or bias over another one, ``inner``, which is asked about the matrix ``whole(g)``."""

    def __init__(self, inner: R, *parts: Any) -> None:
        super().__init__(inner, *parts)
        self.inner = inner

    def whole(self, g: Geometry) -> Geometry:
        """The geometry of the inner rule."""
        return g

    def check(self, g: Geometry) -> None:
        """Check the inner rule against its own geometry."""
        self.inner.check(self.whole(g))

    def part(self, cut: Cut, g: Geometry) -> Any:
        """Return the same over the part of the inner rule."""
        return type(self)(self.inner.part(cut, self.whole(g)), *self.parts[1:])


class Picked(Over[R]):
    """A rule at picked leading indices of the matrix it was laid over, as lists of indices pick.

    ``index`` (n, …) holds one index tensor for each of the n leading axes ``axes`` of that matrix.
    """

    def __init__(self, inner: R, index: Tensor, *axes: int) -> None:
        super().__init__(inner, index, *axes)
        self.index, self.axes = index, axes

    def whole(self, g: Geometry) -> Geometry:
        return g._replace(lead=self.axes)

    def taken(self, block: Tensor) -> Tensor:
        """Take the picked leading indices of a block (…, n, m)."""
        return block.expand(*self.axes, *block.shape[-2:])[tuple(self.index.to(block.device))]

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        """Return the inner rule at single entries of the matrix it was picked from."""
        index = tuple(pick(g, x, lead) for x in self.index)
        return self.inner.at(self.whole(g), index, i, j)

    def check(self, g: Geometry) -> None:
        """Nothing to do: the rule was checked before it was picked."""

    def part(self, cut: Cut, g: Geometry) -> Any:
        """Return the same under fewer of the picked indices."""
        return type(self)(self.inner, self.index[(slice(None), *cut)], *self.axes)

    def __repr__(self) -> str:
        return f"({self.inner!r})[{'×'.join(map(str, self.index.shape[1:]))} picked]"


def indexed(rule: R, whole: Geometry, index: tuple[Any, ...]) -> R:
    """Return a mask or bias of the matrix ``whole`` under an index of its leading axes."""
    if all(isinstance(i, (int, slice)) for i in index):
        return rule.part((*index, *[slice(None)] * (len(whole.lead) - len(index))), whole)
    every = [torch.arange(n, device=whole.device) for n in whole.lead]
    grids = torch.meshgrid(*every, indexing="ij")
    return rule.picked(torch.stack([x[index] for x in grids]), *whole.lead)
