"""What every mask can do: be asked, checked, drawn, joined with others and indexed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from intently.errors import KindError, build
from intently.masks.geometry import Geometry, check_broadcast


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
        return seen_exactly(self, g)

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


def seen_exactly(mask: Mask, g: Geometry) -> Tensor | None:
    """Ask for every query, some at a time."""
    cols = torch.arange(g.s, device=g.device)
    seen = torch.zeros(g.s, dtype=torch.bool, device=g.device)
    step = max(1, 2**22 // max(1, g.s))
    for start in range(0, g.t, step):
        rows = torch.arange(start, min(g.t, start + step), device=g.device)
        some = mask.allow(g, rows, cols)
        seen = seen | some.expand(*some.shape[:-1], g.s).any(-2)
    return None if bool(seen.all()) else seen


def seen_by_any(mask: Mask, g: Geometry) -> Tensor:
    """Ask for one query, where the rule is the same for all."""
    first = torch.arange(min(1, g.t), device=g.device)
    return mask.allow(g, first, torch.arange(g.s, device=g.device)).any(-2)


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
            return seen_exactly(self, g)
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
        return seen_by_any(self, g) if self.per_key else seen_exactly(self, g)

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
