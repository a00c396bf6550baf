"""The base class of masks: evaluate, check, slice, draw, and combine by ``&``, ``|`` and ``~``."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from intently.core.masks.block_states import (
    FULL,
    Rows,
    any_of,
    both,
    either,
    most,
    neither,
    picture,
    reduced,
    step_within,
    unless_all,
)
from intently.core.masks.geometry import (
    Cut,
    Geometry,
    JoinedRules,
    MaskRule,
    OfTensor,
    Over,
    Picked,
    check_broadcast,
    copied,
    cut_right,
)
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import Numbers, hidden, plain, valued
from intently.foundation.field_names import answered


class Mask(MaskRule):
    """A rule that says which keys each query may attend. True means attend.

    A new rule needs ``allow`` (and ``at`` for FlexAttention); everything else is derived, and may
    be overridden with a closed form for speed.
    """

    shown = ("allow", "at", "blocks", "dense", "draw", "inverted")
    per_key = False
    """Whether the rule looks at the key alone (padding): such rules join cheaply."""

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        """Boolean tensor that broadcasts to (…, len(rows), len(cols)) of the matrix ``g``."""
        raise NotImplementedError

    def allows_all(self, g: Geometry) -> bool:
        """Whether the rule is known to forbid nothing in ``g`` (False where it is not known)."""
        return False

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        """State of each block of rows × cols entries: EMPTY, PARTIAL or FULL.

        The result is int8 (⌈t/rows⌉, ⌈s/cols⌉). EMPTY (0) and FULL (2) are certain and hold for
        every leading index; PARTIAL (1) means mixed, or unknown.
        """
        queries, keys = _steps(g)
        size = self.allow(g, queries[:0], keys).shape[:-2].numel() * g.s * rows
        some = queries.split(rows * step_within(size, 2**22))
        return torch.cat([reduced(self._rows(g, r, keys), rows, cols) for r in some])

    def seen(self, g: Geometry) -> Tensor | None:
        """Keys (…, s) that at least one query may attend; None when that is every key."""
        rows = self.queries(g)
        return seen_exactly(self, g) if rows is None else unless_all(any_of(rows))

    def queries(self, g: Geometry) -> Rows:
        """The queries that may attend to each key, in closed form; None if unknown."""
        return None

    def picked(self, index: Tensor, *lead: int) -> Mask:
        """The rule at picked indices of the leading axes; without tensors it is the same there."""
        return PickedMask(self, index, *lead) if self.tensors() else self

    def dense(self, g: Geometry) -> Tensor:
        """The whole rule, broadcastable to (…, t, s)."""
        return self.allow(g, *_steps(g))

    def lead(self) -> tuple[int, ...]:
        """The leading axes along which the rule may differ: those of its tensors."""
        shapes = [tuple(x.shape) for x in self.parts if isinstance(x, Tensor)]
        return max(shapes, key=len, default=())

    def size(self) -> tuple[int, int] | None:
        """The t and s that the rule requires; None if it fits every matrix."""
        return None

    def extent(self) -> int:
        """The number of steps that a drawing needs to show the rule."""
        return 16

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

    def _repr_html_(self) -> str:
        return picture(self)

    def __and__(self, other: Mask | Tensor | Numbers) -> Mask:
        """Keys that both masks allow."""
        return Both(self, as_mask(other))

    def __or__(self, other: Mask | Tensor | Numbers) -> Mask:
        """Keys that at least one of the masks allows."""
        return Either(self, as_mask(other))

    __rand__ = __and__
    __ror__ = __or__

    def __bool__(self) -> bool:
        expected = "a mask joined by &, | and ~"
        cause = "`and`, `or`, `not` and `if` ask for one truth; a mask has one for each key"
        fix = "write `a & b`, `a | b`, `~a`; for `if mask`: `if mask is not None`"
        raise build(KindError, "mask", expected, "the truth of a mask", cause, fix)

    def __invert__(self) -> Mask:
        """Keys that this mask does not allow."""
        return Not(self)

    def inverted(self) -> Mask:
        """Return ``~mask``, also under torch.compile, which cannot trace ``~`` of objects.

        >>> from intently.core.masks import causal
        >>> causal().inverted()
        ~causal()
        """
        return Not(self)

    def _rows(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        found = self.allow(g, rows, cols)
        return found.expand(*found.shape[:-2], len(rows), len(cols))


class _Sign(NamedTuple):
    """``&`` or ``|``, and its effect on entries, block states and closed forms."""

    text: str
    entries: Callable[[Tensor, Tensor], Tensor]
    blocks: Callable[[Tensor, Tensor], Tensor]
    queries: Callable[[Rows, Rows], Rows]


class _JoinedMasks(JoinedRules[Mask], Mask):
    sign: ClassVar[_Sign]

    def __init__(self, left: Mask, right: Mask) -> None:
        super().__init__(left, right)
        self.per_key = left.per_key and right.per_key

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return self.sign.entries(self.left.allow(g, rows, cols), self.right.allow(g, rows, cols))

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return self.sign.entries(self.left.at(g, lead, i, j), self.right.at(g, lead, i, j))

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        return self.sign.blocks(self.left.blocks(g, rows, cols), self.right.blocks(g, rows, cols))

    def queries(self, g: Geometry) -> Rows:
        left = self.left.queries(g)
        return None if left is None else self.sign.queries(left, self.right.queries(g))

    def lead(self) -> tuple[int, ...]:
        return max(self.left.lead(), self.right.lead(), key=len)

    def size(self) -> tuple[int, int] | None:
        return self.left.size() or self.right.size()

    def extent(self) -> int:
        return max(self.left.extent(), self.right.extent())

    def __repr__(self) -> str:
        other = isinstance(self.left, _JoinedMasks) and self.left.sign != self.sign
        left = f"({self.left!r})" if other else repr(self.left)
        right = f"({self.right!r})" if isinstance(self.right, _JoinedMasks) else repr(self.right)
        return f"{left} {self.sign.text} {right}"


class Both(_JoinedMasks):
    """``left & right``."""

    sign = _Sign("&", operator.and_, torch.minimum, both)

    def allows_all(self, g: Geometry) -> bool:
        return self.left.allows_all(g) and self.right.allows_all(g)

    def seen(self, g: Geometry) -> Tensor | None:
        if self.left.allows_all(g) or self.right.allows_all(g):
            return (self.right if self.left.allows_all(g) else self.left).seen(g)
        if self.left.per_key or self.right.per_key:
            left, right = self.left.seen(g), self.right.seen(g)
            if left is None or right is None:
                return right if left is None else left
            return left & right
        return super().seen(g)


class Either(_JoinedMasks):
    """``left | right``."""

    sign = _Sign("|", operator.or_, torch.maximum, either)

    def allows_all(self, g: Geometry) -> bool:
        return self.left.allows_all(g) or self.right.allows_all(g)

    def seen(self, g: Geometry) -> Tensor | None:
        left = self.left.seen(g)
        right = None if left is None else self.right.seen(g)
        return None if left is None or right is None else unless_all(left | right)


class OverMask(Over[Mask], Mask):
    """A mask over another one, ``inner``."""

    def lead(self) -> tuple[int, ...]:
        return self.inner.lead()

    def extent(self) -> int:
        return self.inner.extent()


class Not(OverMask):
    """``~inner``."""

    def __init__(self, inner: Mask) -> None:
        super().__init__(inner)
        self.per_key = inner.per_key

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return ~self.inner.allow(g, rows, cols)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return ~self.inner.at(g, lead, i, j)

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        return FULL - self.inner.blocks(g, rows, cols)

    def queries(self, g: Geometry) -> Rows:
        return neither(self.inner.queries(g), g.t)

    def seen(self, g: Geometry) -> Tensor | None:
        return unless_all(seen_by_any(self, g)) if self.per_key else super().seen(g)

    def size(self) -> tuple[int, int] | None:
        return self.inner.size()

    def __repr__(self) -> str:
        return f"~({self.inner!r})" if isinstance(self.inner, _JoinedMasks) else f"~{self.inner!r}"


class PickedMask(Picked[Mask], OverMask):
    """The mask at picked leading indices."""

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return self.taken(self.inner.allow(self.whole(g), rows, cols))

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        return self.inner.blocks(self.whole(g), rows, cols)

    def seen(self, g: Geometry) -> Tensor | None:
        seen = self.inner.seen(self.whole(g))
        return None if seen is None else self.taken(seen[..., None, :])[..., 0, :]

    def lead(self) -> tuple[int, ...]:
        return tuple(self.index.shape[1:])

    def size(self) -> tuple[int, int] | None:
        return self.inner.size()


class Allowed(OfTensor, Mask):
    """A boolean tensor that broadcasts to (…, t, s)."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor)
        self.tensor = tensor

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return self.entries(g, rows, cols)

    def check(self, g: Geometry) -> None:
        check_broadcast(self.tensor, g, "mask", "a boolean tensor")

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        found = reduced(self.laid(g), rows, cols)
        return found.expand(-(-g.t // rows), -(-g.s // cols))

    def seen(self, g: Geometry) -> Tensor | None:
        x = self.laid(g)
        if g.t == 0:
            x = x[..., :0, :]
        seen = most(x, -2).bool() if x.numel() else x.any(-2)
        return unless_all(seen.expand(*x.shape[:-2], g.s))

    def part(self, cut: Cut, g: Geometry) -> Mask:
        return Allowed(cut_right(self.tensor, cut))

    def lead(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[:-2])

    def size(self) -> tuple[int, int] | None:
        t, s = (1, 1, *self.tensor.shape)[-2:]
        return None if t == s == 1 else (s if t == 1 else t, t if s == 1 else s)

    def __repr__(self) -> str:
        return f"allowed({'×'.join(map(str, self.tensor.shape))} tensor)"


class Bare(Allowed):
    """A boolean tensor that nobody called (t, s): refused where it may be (b, s)."""

    def check(self, g: Geometry) -> None:
        super().check(g)
        if torch.compiler.is_exporting() or self.tensor.ndim != 2 or not g.lead:
            return
        n, s = self.tensor.shape
        if n != 1 and n == g.t == g.lead[0] and s == g.s:
            expected = f"shape (1, t, s) or (b, t, s) = {(n, n, s)}"
            cause = f"a row may be a text of the batch or a query, since b = t = {n}"
            fix = "if each text has a row, as in a tokenizer's attention_mask, pass it.padding(m); "
            fix += "if each query has one, m[None]"
            raise build(ArgumentError, "mask", expected, shape_of(self.tensor), cause, fix)


def settled(mask: Mask) -> Mask:
    """Return a mask that fits its matrix with what was `Bare` as `Allowed`: it is (t, s)."""
    if type(mask) is Bare:
        return Allowed(mask.tensor)
    parts, same = [], True
    for part in mask.parts:
        parts.append(settled(part) if isinstance(part, Mask) else part)
        same = same and parts[-1] is part
    return mask if same else type(mask)(*parts)


def _steps(g: Geometry) -> tuple[Tensor, Tensor]:
    return torch.arange(g.t, device=g.device), torch.arange(g.s, device=g.device)


def seen_exactly(mask: Mask, g: Geometry) -> Tensor | None:
    """Evaluate every query, some at a time."""
    queries, cols = _steps(g)
    lead = mask.allow(g, queries[:0], cols).shape[:-2]
    seen = torch.zeros(*lead, g.s, dtype=torch.bool, device=g.device)
    for rows in queries.split(step_within(lead.numel() * g.s, 2**22)):
        seen = seen | mask._rows(g, rows, cols).any(-2)
    return unless_all(seen)


def seen_by_any(mask: Mask, g: Geometry) -> Tensor:
    """Evaluate one query, where the rule is the same for all."""
    queries, keys = _steps(g)
    return mask.allow(g, queries[:1], keys).any(-2)


@answered
def allowed(tensor: Tensor | Numbers) -> Allowed:
    """A boolean tensor that broadcasts to (…, h, t, s) as NumPy does; True means attend.

    Lists and NumPy arrays of booleans are copied. Raises `KindError` for other dtypes.
    """
    expected, given = "a boolean tensor, True where a query may attend", tensor
    if not isinstance(tensor, Tensor):
        tensor = copied(tensor, "mask", expected)
    elif not plain(tensor):
        raise hidden(tensor, "mask")
    if tensor.dtype is not torch.bool:
        got = f"dtype {tensor.dtype}"
        if valued(tensor) and zeros_and_ones(tensor):
            fix = f"if 1 means attend, pass {as_booleans(given, 'mask')}"
            raise build(KindError, "mask", expected, f"zeros and ones of {got}", fix=fix)
        fix = "pass it as bias=, or write `mask == 0` if all else in it is very negative"
        raise build(KindError, "mask", expected, got, "numbers to add are a bias", fix)
    return Allowed(tensor)


def zeros_and_ones(x: Tensor) -> bool:
    """Whether numbers are 0 and 1 only: a mask of another library; zeros alone may be added."""
    if torch.compiler.is_compiling():
        return False
    try:
        return bool(((x == 0) | (x == 1)).all() & (x == 1).any())
    except RuntimeError:  # fake, on the meta device, under vmap: no numbers to ask about
        return False


def as_booleans(x: object, name: str) -> str:
    """Return the code that makes booleans of 0 and 1."""
    if isinstance(x, np.ndarray):
        return f"{name}.astype(bool)"
    return f"{name}.bool()" if isinstance(x, Tensor) else f"torch.tensor({name}).bool()"


def as_mask(mask: Mask | Tensor | Numbers, device: torch.device | None = None) -> Mask:
    """Return a mask unchanged, booleans as a mask; lists and arrays of them go to ``device``."""
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, Tensor):
        return Bare(allowed(mask).tensor)
    if isinstance(mask, (list, tuple, np.ndarray)):
        return Bare(allowed(mask).tensor.to(device))
    expected = "a mask such as it.causal(), or a boolean tensor"
    cause = "True means attend in every mask"
    raise build(KindError, "mask", expected, type(mask).__name__, cause)
