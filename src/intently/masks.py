"""Masks as values: True means attend, queries have positions, and every mask draws itself.

A mask is made without knowing t and s; it is asked about some rows and columns of a matrix whose
`Geometry` is known by then. By default query i of t stands at position s − t + i, so the last
query sees the last key (contract 3 of the design), and masks join with ``&``, ``|`` and ``~``:

>>> print(causal().draw(3, 5))
█ █ █ · ·
█ █ █ █ ·
█ █ █ █ █
>>> causal() & ~window(1, 0)
causal() & ~window(1, 0)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from intently.errors import ArgumentError, KindError, build, shape_of


class Geometry(NamedTuple):
    """The matrix a mask is laid over: its leading axes, t, s and device."""

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
            raise build(
                ArgumentError,
                name,
                f"a shape that matches the leftmost leading axes {self.lead}",
                shape_of(per_row),
                "lengths, offsets and ids hold one entry per batch row (b,)",
            )
        return per_row.to(self.device).reshape(*per_row.shape, *(1,) * (len(self.lead) - n + 2))


class Mask:
    """A rule that says which keys each query may attend. True means attend."""

    per_key = False
    """Whether the rule looks at the key alone (padding): such rules join cheaply."""

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        """Boolean tensor that broadcasts to (…, len(rows), len(cols)) of the matrix ``g``."""
        raise NotImplementedError

    def check(self, g: Geometry) -> None:
        """Raise `ArgumentError` if the rule cannot be laid over the matrix ``g``."""

    def allows_all(self, g: Geometry) -> bool:
        """Whether the rule is known to forbid nothing in ``g`` (False where it is not known)."""
        return False

    def seen(self, g: Geometry) -> Tensor | None:
        """Keys (…, s) that at least one query may attend; None when that is every key."""
        return _seen_exactly(self, g)

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors the rule holds."""
        return ()

    def dense(self, g: Geometry) -> Tensor:
        """The whole rule, broadcastable to (…, t, s)."""
        rows = torch.arange(g.t, device=g.device)
        return self.allow(g, rows, torch.arange(g.s, device=g.device))

    def lead(self) -> tuple[int, ...]:
        """The leading axes that the tensors of the rule have."""
        return ()

    def draw(self, t: int, s: int | None = None) -> str:
        """Draw the rule for t queries and s keys: ``█`` attends, ``·`` does not.

        Where the rule differs between batch rows or heads, the first is drawn.
        """
        s = t if s is None else s
        g = Geometry(self.lead(), t, s, torch.device("cpu"))
        self.check(g)
        grid = self.dense(g)
        grid = grid[(0,) * (grid.ndim - 2)].expand(t, s)
        return "\n".join(" ".join("█" if on else "·" for on in row) for row in grid.tolist())

    def __and__(self, other: Mask | Tensor) -> Mask:
        """Keys that both allow."""
        return _Joined(self, as_mask(other), "&")

    def __or__(self, other: Mask | Tensor) -> Mask:
        """Keys that at least one allows."""
        return _Joined(self, as_mask(other), "|")

    def __invert__(self) -> Mask:
        """Keys that this does not allow."""
        return _Not(self)


def _seen_exactly(mask: Mask, g: Geometry) -> Tensor | None:
    """Ask for every query, some at a time."""
    cols = torch.arange(g.s, device=g.device)
    seen = torch.zeros(g.s, dtype=torch.bool, device=g.device)
    step = max(1, 2**22 // max(1, g.s))
    for start in range(0, g.t, step):
        rows = torch.arange(start, min(g.t, start + step), device=g.device)
        some = mask.allow(g, rows, cols)
        seen = seen | some.expand(*some.shape[:-1], g.s).any(-2)
    return None if bool(seen.all()) else seen


def _seen_by_any(mask: Mask, g: Geometry) -> Tensor:
    """Ask for one query, where the rule is the same for all."""
    first = torch.arange(min(1, g.t), device=g.device)
    return mask.allow(g, first, torch.arange(g.s, device=g.device)).any(-2)


def _positions(g: Geometry, rows: Tensor, offset: int | Tensor | None) -> Tensor:
    """Positions of the query rows, (…, len(rows), 1)."""
    if isinstance(offset, Tensor):
        return g.align(offset, "offset") + rows[:, None]
    return rows[:, None] + (g.s - g.t if offset is None else offset)


class _Positioned(Mask):
    """A rule about query positions, which an offset may move."""

    def __init__(self, offset: int | Tensor | None) -> None:
        if isinstance(offset, bool) or not (offset is None or isinstance(offset, int)):
            offset = _integers(offset, "offset")
        self.offset = offset

    def lead(self) -> tuple[int, ...]:
        return tuple(self.offset.shape) if isinstance(self.offset, Tensor) else ()

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.offset,) if isinstance(self.offset, Tensor) else ()

    def check(self, g: Geometry) -> None:
        if isinstance(self.offset, Tensor):
            g.align(self.offset, "offset")

    def _offset_repr(self) -> str:
        if self.offset is None:
            return ""
        value = self.offset.tolist() if isinstance(self.offset, Tensor) else self.offset
        return f"offset={value}"

    def _first(self, g: Geometry) -> int | None:
        """Position of query 0, None where it differs by row."""
        if isinstance(self.offset, Tensor):
            return None
        return g.s - g.t if self.offset is None else self.offset


class _Causal(_Positioned):
    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return cols <= _positions(g, rows, self.offset)

    def allows_all(self, g: Geometry) -> bool:
        first = self._first(g)
        return first is not None and first >= g.s - 1

    def seen(self, g: Geometry) -> Tensor | None:
        first = self._first(g)
        if first is None or g.t == 0:
            return _seen_exactly(self, g)
        last = first + g.t - 1
        return None if last >= g.s - 1 else torch.arange(g.s, device=g.device) <= last

    def __repr__(self) -> str:
        return f"causal({self._offset_repr()})"


class _Window(_Positioned):
    def __init__(self, before: int, after: int, offset: int | Tensor | None) -> None:
        super().__init__(offset)
        self.before, self.after = before, after

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        at = _positions(g, rows, self.offset)
        return (cols >= at - self.before) & (cols <= at + self.after)

    def allows_all(self, g: Geometry) -> bool:
        first = self._first(g)
        if first is None:
            return False
        return first + g.t - 1 - self.before <= 0 and first + self.after >= g.s - 1

    def seen(self, g: Geometry) -> Tensor | None:
        first = self._first(g)
        if first is None or g.t == 0:
            return _seen_exactly(self, g)
        least, most = first - self.before, first + g.t - 1 + self.after
        if least <= 0 and most >= g.s - 1:
            return None
        cols = torch.arange(g.s, device=g.device)
        return (cols >= least) & (cols <= most)

    def __repr__(self) -> str:
        parts = [str(self.before), str(self.after), self._offset_repr()]
        return f"window({', '.join(p for p in parts if p)})"


class _Dilated(_Positioned):
    def __init__(self, step: int, offset: int | Tensor | None) -> None:
        super().__init__(offset)
        self.step = step

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return (cols - _positions(g, rows, self.offset)) % self.step == 0

    def seen(self, g: Geometry) -> Tensor | None:
        return None if g.t >= self.step else _seen_exactly(self, g)

    def __repr__(self) -> str:
        return f"dilated({', '.join(p for p in (str(self.step), self._offset_repr()) if p)})"


class _Prefix(Mask):
    per_key = True

    def __init__(self, n: int | Tensor) -> None:
        self.n = n

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        n = g.align(self.n, "n") if isinstance(self.n, Tensor) else self.n
        return cols[None, :] < n

    def seen(self, g: Geometry) -> Tensor | None:
        return _seen_by_any(self, g)

    def lead(self) -> tuple[int, ...]:
        return tuple(self.n.shape) if isinstance(self.n, Tensor) else ()

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.n,) if isinstance(self.n, Tensor) else ()

    def check(self, g: Geometry) -> None:
        if isinstance(self.n, Tensor):
            g.align(self.n, "n")

    def __repr__(self) -> str:
        return f"prefix({self.n.tolist() if isinstance(self.n, Tensor) else self.n})"


class _Padding(Mask):
    per_key = True

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return cols < g.align(self.lengths, "lengths")

    def check(self, g: Geometry) -> None:
        g.align(self.lengths, "lengths")

    def seen(self, g: Geometry) -> Tensor | None:
        return _seen_by_any(self, g)

    def lead(self) -> tuple[int, ...]:
        return tuple(self.lengths.shape)

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.lengths,)

    def __repr__(self) -> str:
        return f"padding({self.lengths.tolist()})"


class _Segments(Mask):
    def __init__(self, query_ids: Tensor, key_ids: Tensor) -> None:
        self.query_ids, self.key_ids = query_ids, key_ids

    def _side(self, g: Geometry, ids: Tensor, index: Tensor, name: str) -> Tensor:
        ids = ids.to(g.device)[..., index]
        flat = g.align(ids[..., 0], name).shape if len(index) else (1,) * (len(g.lead) + 2)
        return ids.reshape(*flat[:-2], len(index))

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        q = self._side(g, self.query_ids, rows, "query_ids")
        k = self._side(g, self.key_ids, cols, "key_ids")
        return q[..., :, None] == k[..., None, :]

    def check(self, g: Geometry) -> None:
        for ids, steps, name in (
            (self.query_ids, g.t, "query_ids"),
            (self.key_ids, g.s, "key_ids"),
        ):
            if ids.shape[-1] != steps:
                letter = "t" if name == "query_ids" else "s"
                raise build(
                    ArgumentError, name, f"shape (…, {letter}={steps})", shape_of(ids),
                    fix="give one id per step, and key_ids of their own where t and s differ",
                )  # fmt: skip
            if steps:
                g.align(ids[..., 0], name)

    def lead(self) -> tuple[int, ...]:
        return max(tuple(self.query_ids.shape[:-1]), tuple(self.key_ids.shape[:-1]), key=len)

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.query_ids, self.key_ids)

    def __repr__(self) -> str:
        if self.query_ids is self.key_ids:
            return f"segments({self.query_ids.tolist()})"
        return f"segments({self.query_ids.tolist()}, {self.key_ids.tolist()})"


class _Grid(Mask):
    def __init__(self, height: int, width: int, radius: int) -> None:
        self.height, self.width, self.radius = height, width, radius

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        dy = (rows[:, None] // self.width - cols // self.width).abs()
        dx = (rows[:, None] % self.width - cols % self.width).abs()
        return (dy <= self.radius) & (dx <= self.radius)

    def check(self, g: Geometry) -> None:
        pixels = self.height * self.width
        if (g.t, g.s) != (pixels, pixels):
            raise build(
                ArgumentError, "mask", f"t = s = {self.height}·{self.width} = {pixels} for {self}",
                f"t={g.t}, s={g.s}", "grid joins the pixels of one image, row after row",
            )  # fmt: skip

    def seen(self, g: Geometry) -> Tensor | None:
        return None

    def __repr__(self) -> str:
        return f"grid({self.height}, {self.width}, {self.radius})"


class _Allowed(Mask):
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        x = self.tensor.to(g.device)
        x = x.reshape((1,) * max(0, 2 - x.ndim) + tuple(x.shape))
        x = x if x.shape[-2] == 1 else x.index_select(-2, rows)
        return x if x.shape[-1] == 1 else x.index_select(-1, cols)

    def check(self, g: Geometry) -> None:
        check_broadcast(self.tensor, g, "mask")

    def lead(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[:-2])

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.tensor,)

    def __repr__(self) -> str:
        return f"allowed({'×'.join(map(str, self.tensor.shape))} tensor)"


class _Joined(Mask):
    def __init__(self, left: Mask, right: Mask, sign: str) -> None:
        self.left, self.right, self.sign = left, right, sign
        self.per_key = left.per_key and right.per_key

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        left, right = self.left.allow(g, rows, cols), self.right.allow(g, rows, cols)
        return left & right if self.sign == "&" else left | right

    def check(self, g: Geometry) -> None:
        self.left.check(g)
        self.right.check(g)

    def allows_all(self, g: Geometry) -> bool:
        both = (self.left.allows_all(g), self.right.allows_all(g))
        return all(both) if self.sign == "&" else any(both)

    def seen(self, g: Geometry) -> Tensor | None:
        if self.sign == "&" and not (self.left.per_key or self.right.per_key):
            return _seen_exactly(self, g)
        left, right = self.left.seen(g), self.right.seen(g)
        if self.sign == "|":
            return None if left is None or right is None else left | right
        if left is None or right is None:
            return right if left is None else left
        return left & right

    def lead(self) -> tuple[int, ...]:
        return max(self.left.lead(), self.right.lead(), key=len)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.left.tensors() + self.right.tensors()

    def __repr__(self) -> str:
        def part(mask: Mask) -> str:
            nested = isinstance(mask, _Joined) and mask.sign != self.sign
            return f"({mask!r})" if nested else repr(mask)

        return f"{part(self.left)} {self.sign} {part(self.right)}"


class _Not(Mask):
    def __init__(self, mask: Mask) -> None:
        self.mask = mask
        self.per_key = mask.per_key

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return ~self.mask.allow(g, rows, cols)

    def check(self, g: Geometry) -> None:
        self.mask.check(g)

    def seen(self, g: Geometry) -> Tensor | None:
        return _seen_by_any(self, g) if self.per_key else _seen_exactly(self, g)

    def lead(self) -> tuple[int, ...]:
        return self.mask.lead()

    def tensors(self) -> tuple[Tensor, ...]:
        return self.mask.tensors()

    def __repr__(self) -> str:
        return f"~({self.mask!r})" if isinstance(self.mask, _Joined) else f"~{self.mask!r}"


class _Indexed(Mask):
    """A mask under an index of the leading axes of the matrix it was laid over."""

    def __init__(self, mask: Mask, whole: Geometry, index: tuple[Any, ...]) -> None:
        self.mask, self.whole, self.index = mask, whole, index

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        block = self.mask.allow(self.whole._replace(device=g.device), rows, cols)
        return block.expand(*self.whole.lead, *block.shape[-2:])[self.index]

    def tensors(self) -> tuple[Tensor, ...]:
        return self.mask.tensors()

    def __repr__(self) -> str:
        return f"{self.mask!r}[{', '.join(map(str, self.index))}]"


def indexed(mask: Mask, whole: Geometry, index: tuple[Any, ...]) -> Mask:
    """Return the mask under an index of the leading axes; without tensors it is the same there."""
    return _Indexed(mask, whole, index) if mask.tensors() else mask


def _whole(value: int, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise build(KindError, name, f"an int ≥ {least}", repr(value))
    if value < least:
        raise build(ArgumentError, name, f"an int ≥ {least}", value)
    return value


def _integers(tensor: Any, name: str) -> Tensor:
    if not isinstance(tensor, Tensor):
        try:
            tensor = torch.as_tensor(tensor)
        except (TypeError, ValueError, RuntimeError):
            raise build(KindError, name, "integers", repr(tensor)) from None
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool:
        raise build(KindError, name, "integers", f"dtype {tensor.dtype}")
    return tensor


def causal(offset: int | Tensor | None = None) -> Mask:
    """Each query sees the keys up to its own position.

    Query i stands at ``offset + i`` (an int, or a tensor (b,) for ragged caches); by default at
    s − t + i, bottom-right::

        t=3, s=5   █ █ █ · ·      offset=0   █ · · · ·
                   █ █ █ █ ·                 █ █ · · ·
                   █ █ █ █ █                 █ █ █ · ·

    Source: Vaswani et al. 2017, section 3.2.3.
    """
    return _Causal(offset)


def window(before: int, after: int, offset: int | Tensor | None = None) -> Mask:
    """Each query sees keys from position − before to position + after, both included.

    ::

        window(1, 0), t=s=4   █ · · ·
                              █ █ · ·
                              · █ █ ·
                              · · █ █
    """
    return _Window(_whole(before, "before", 0), _whole(after, "after", 0), offset)


def prefix(n: int | Tensor) -> Mask:
    """Every query sees the first n keys; n is an int, or a tensor (b,) with one per batch row.

    ::

        causal() | prefix(2), t=s=4   █ █ · ·
                                      █ █ · ·
                                      █ █ █ ·
                                      █ █ █ █
    """
    return _Prefix(_integers(n, "n") if isinstance(n, Tensor) else _whole(n, "n", 0))


def padding(lengths: Tensor) -> Mask:
    """Every query of batch row i sees the first ``lengths[i]`` keys; lengths (b,).

    ::

        padding(tensor([2])), t=2, s=4   █ █ · ·
                                         █ █ · ·

    A row of length 0 attends to nothing, so its result is exactly zero (contract 4).
    """
    return _Padding(_integers(lengths, "lengths"))


def segments(query_ids: Tensor, key_ids: Tensor | None = None) -> Mask:
    """Queries see keys of the same segment; ids (…, t) and (…, s), for packed documents.

    ::

        segments(tensor([0, 0, 1]))   █ █ ·
                                      █ █ ·
                                      · · █
    """
    query_ids = _integers(query_ids, "query_ids")
    return _Segments(query_ids, query_ids if key_ids is None else _integers(key_ids, "key_ids"))


def dilated(step: int, offset: int | Tensor | None = None) -> Mask:
    """Queries see the keys whose distance is a multiple of ``step``.

    ::

        dilated(2), t=s=4   █ · █ ·
                            · █ · █
                            █ · █ ·
                            · █ · █
    """
    return _Dilated(_whole(step, "step", 1), offset)


def grid(height: int, width: int, radius: int) -> Mask:
    """Pixels of an image (row after row) see the square of ``radius`` pixels around them.

    ::

        grid(1, 4, 1)   █ █ · ·
                        █ █ █ ·
                        · █ █ █
                        · · █ █
    """
    sides = _whole(height, "height", 1), _whole(width, "width", 1)
    return _Grid(*sides, _whole(radius, "radius", 0))


def allowed(tensor: Tensor) -> Mask:
    """A boolean tensor that broadcasts to (…, h, t, s) as NumPy does; True means attend."""
    if not isinstance(tensor, Tensor):
        tensor = torch.as_tensor(tensor)
    if tensor.dtype is not torch.bool:
        raise build(
            KindError, "mask", "a boolean tensor, True where a query may attend",
            f"dtype {tensor.dtype}", "additive masks are biases",
            "write `mask = additive == 0`, or hand it in as bias=",
        )  # fmt: skip
    return _Allowed(tensor)


def as_mask(mask: Mask | Tensor) -> Mask:
    """A mask as it is; a boolean tensor as `allowed`."""
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, Tensor):
        return allowed(mask)
    raise build(
        KindError, "mask", "a mask such as it.causal(), or a boolean tensor", type(mask).__name__,
        "True means attend in every mask",
    )  # fmt: skip


def check_broadcast(tensor: Tensor, g: Geometry, name: str) -> None:
    """Raise unless ``tensor`` broadcasts to (…, t, s); a 3-D (b, t, s) is refused with advice."""
    shape = tuple(tensor.shape)
    want = g.shape
    fits = len(shape) <= len(want) and all(
        a in (1, b) for a, b in zip(shape[::-1], want[::-1])
    )
    if len(shape) == 3 and len(want) == 4 and shape[0] not in (1, want[1]) and shape[0] == want[0]:
        raise build(
            ArgumentError, name, f"a shape that broadcasts to (b, h, t, s) = {want}",
            shape_of(tensor), "its first axis is b, where broadcasting looks for h",
            "use m[:, None], shape (b, 1, t, s)",
        )  # fmt: skip
    if not fits and len(shape) == 2 and len(want) > 2 and shape == (want[0], want[-1]):
        raise build(
            ArgumentError, name, f"a shape that broadcasts to (…, t, s) = {want}",
            shape_of(tensor), "it holds one entry per batch row and key, (b, s)",
            f"use m[:, {'None, ' * (len(want) - 3)}None], or it.padding(lengths)",
        )  # fmt: skip
    if not fits:
        raise build(
            ArgumentError, name, f"a shape that broadcasts to (…, t, s) = {want}", shape_of(tensor),
        )  # fmt: skip


def is_plain_causal(mask: Mask) -> bool:
    """Whether the mask is `causal()` with the default offset, which kernels know by heart."""
    return isinstance(mask, _Causal) and mask.offset is None
