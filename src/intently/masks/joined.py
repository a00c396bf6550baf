"""Masks made of masks: ``&``, ``|`` and ``~``."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from intently.masks.blocks import FULL
from intently.masks.geometry import Cut, Geometry
from intently.masks.queries import Rows, any_of, both, either, neither, unless_all
from intently.masks.rule import Mask, seen_by_any, seen_exactly


class _Pair(Mask):
    sign: ClassVar[str]

    def __init__(self, left: Mask, right: Mask) -> None:
        super().__init__(left, right)
        self.left, self.right = left, right
        self.per_key = left.per_key and right.per_key

    def check(self, g: Geometry) -> None:
        self.left.check(g)
        self.right.check(g)

    def part(self, cut: Cut, g: Geometry) -> Mask:
        return type(self)(self.left.part(cut, g), self.right.part(cut, g))

    def lead(self) -> tuple[int, ...]:
        return max(self.left.lead(), self.right.lead(), key=len)

    def size(self) -> tuple[int, int] | None:
        return self.left.size() or self.right.size()

    def extent(self) -> int:
        return max(self.left.extent(), self.right.extent())

    def __repr__(self) -> str:
        left, right = repr(self.left), repr(self.right)
        if isinstance(self.left, _Pair) and self.left.sign != self.sign:
            left = f"({left})"
        if isinstance(self.right, _Pair):
            right = f"({right})"
        return f"{left} {self.sign} {right}"


class Both(_Pair):
    """``left & right``."""

    sign = "&"

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return self.left.allow(g, rows, cols) & self.right.allow(g, rows, cols)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return self.left.at(g, lead, i, j) & self.right.at(g, lead, i, j)

    def allows_all(self, g: Geometry) -> bool:
        return self.left.allows_all(g) and self.right.allows_all(g)

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        return torch.minimum(self.left.blocks(g, rows, cols), self.right.blocks(g, rows, cols))

    def queries(self, g: Geometry) -> Rows:
        left = self.left.queries(g)
        return None if left is None else both(left, self.right.queries(g))

    def seen(self, g: Geometry) -> Tensor | None:
        if self.left.allows_all(g) or self.right.allows_all(g):
            return (self.right if self.left.allows_all(g) else self.left).seen(g)
        if self.left.per_key or self.right.per_key:
            left, right = self.left.seen(g), self.right.seen(g)
            if left is None or right is None:
                return right if left is None else left
            return left & right
        rows = self.queries(g)
        return seen_exactly(self, g) if rows is None else unless_all(any_of(rows))


class Either(_Pair):
    """``left | right``."""

    sign = "|"

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return self.left.allow(g, rows, cols) | self.right.allow(g, rows, cols)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return self.left.at(g, lead, i, j) | self.right.at(g, lead, i, j)

    def allows_all(self, g: Geometry) -> bool:
        return self.left.allows_all(g) or self.right.allows_all(g)

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        return torch.maximum(self.left.blocks(g, rows, cols), self.right.blocks(g, rows, cols))

    def queries(self, g: Geometry) -> Rows:
        left = self.left.queries(g)
        return None if left is None else either(left, self.right.queries(g))

    def seen(self, g: Geometry) -> Tensor | None:
        left = self.left.seen(g)
        right = None if left is None else self.right.seen(g)
        return None if left is None or right is None else unless_all(left | right)


class Not(Mask):
    """``~mask``."""

    def __init__(self, mask: Mask) -> None:
        super().__init__(mask)
        self.mask = mask
        self.per_key = mask.per_key

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return ~self.mask.allow(g, rows, cols)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return ~self.mask.at(g, lead, i, j)

    def check(self, g: Geometry) -> None:
        self.mask.check(g)

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        return FULL - self.mask.blocks(g, rows, cols)

    def queries(self, g: Geometry) -> Rows:
        return neither(self.mask.queries(g), g.t)

    def seen(self, g: Geometry) -> Tensor | None:
        return unless_all(seen_by_any(self, g)) if self.per_key else super().seen(g)

    def part(self, cut: Cut, g: Geometry) -> Mask:
        return Not(self.mask.part(cut, g))

    def lead(self) -> tuple[int, ...]:
        return self.mask.lead()

    def size(self) -> tuple[int, int] | None:
        return self.mask.size()

    def extent(self) -> int:
        return self.mask.extent()

    def __repr__(self) -> str:
        return f"~({self.mask!r})" if isinstance(self.mask, _Pair) else f"~{self.mask!r}"
