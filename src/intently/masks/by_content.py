"""Masks that know what stands where: prefixes, padding, images."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from intently.errors import ArgumentError, build
from intently.foundation.checks import whole_number
from intently.masks.blocks import Edges, edges, states
from intently.masks.geometry import Geometry, Integers, integers, pick, written
from intently.masks.queries import Queries, Rows
from intently.masks.rule import Mask


class _First(Mask):
    """The first n keys, n an int or one per batch row."""

    per_key = True
    name = "n"

    def __init__(self, n: int | Tensor) -> None:
        super().__init__(n)
        self.n = n

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return cols[None, :] < self._counts(g)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        n = self.n
        return j < (pick(g, n, lead[: n.ndim]) if isinstance(n, Tensor) else n)

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        e, n = edges(g, rows, cols), self._counts(g)
        return states(g, rows, cols, e.left >= n.max(), e.right < n.min())

    def seen(self, g: Geometry) -> Tensor | None:
        if isinstance(self.n, int) and g.t and self.n >= g.s:
            return None
        return super().seen(g)

    def queries(self, g: Geometry) -> Rows:
        keys = torch.arange(g.s, device=g.device)
        last = torch.where(keys < self._counts(g)[..., 0], g.t - 1, -1)
        return [Queries(torch.zeros_like(last), last)]

    def check(self, g: Geometry) -> None:
        if isinstance(self.n, Tensor):
            g.align(self.n, self.name)

    def _counts(self, g: Geometry) -> Tensor:
        """How many keys are seen, (…, 1, 1)."""
        if isinstance(self.n, Tensor) and self.n.numel():
            return g.align(self.n, self.name)
        return torch.tensor(0 if isinstance(self.n, Tensor) else self.n, device=g.device)[
            None, None
        ]

    def _most(self) -> int:
        return int(self.n.max()) if isinstance(self.n, Tensor) and self.n.numel() else 0


class _Prefix(_First):
    def allows_all(self, g: Geometry) -> bool:
        return isinstance(self.n, int) and self.n >= g.s

    def extent(self) -> int:
        n = self._most() if isinstance(self.n, Tensor) else self.n
        return min(1024, max(16, 2 * n))

    def __repr__(self) -> str:
        return f"prefix({written(self.n)})"


class _Padding(_First):
    name = "lengths"

    def size(self) -> tuple[int, int] | None:
        return None if self._most() < 1 else (self._most(), self._most())

    def __repr__(self) -> str:
        return f"padding({written(self.n)})"


class _Grid(Mask):
    def __init__(self, height: int, width: int, radius: int) -> None:
        super().__init__(height, width, radius)
        self.height, self.width, self.radius = height, width, radius

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return self._near(rows[:, None], cols)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return self._near(i, j)

    def _near(self, i: Tensor, j: Tensor) -> Tensor:
        dy = (i // self.width - j // self.width).abs()
        dx = (i % self.width - j % self.width).abs()
        return (dy <= self.radius) & (dx <= self.radius)

    def allows_all(self, g: Geometry) -> bool:
        return self.radius >= max(self.height, self.width) - 1

    def check(self, g: Geometry) -> None:
        pixels = self.height * self.width
        if (g.t, g.s) != (pixels, pixels):
            raise build(
                ArgumentError,
                "mask",
                f"t = s = {self.height}·{self.width} = {pixels} for {self}",
                f"t={g.t}, s={g.s}",
                "grid joins the pixels of one image, row after row",
            )

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        e = edges(g, rows, cols)
        empty, full = [], []
        for a, b, c, d in (self._heights(e), self._widths(e)):
            empty.append((c - b > self.radius) | (a - d > self.radius))
            full.append((d - a <= self.radius) & (b - c <= self.radius))
        return states(g, rows, cols, empty[0] | empty[1], full[0] & full[1])

    def _heights(self, e: Edges) -> Edges:
        """Highest and lowest pixel of each block."""
        return Edges(*(x // self.width for x in e))

    def _widths(self, e: Edges) -> Edges:
        """Leftmost and rightmost pixel of each block; a block of two image rows has both ends."""
        y = self._heights(e)
        top, bottom = self._ends(e.top, e.bottom, y.top == y.bottom)
        return Edges(top, bottom, *self._ends(e.left, e.right, y.left == y.right))

    def _ends(self, first: Tensor, last: Tensor, one: Tensor) -> tuple[Tensor, Tensor]:
        last = torch.where(one, last % self.width, self.width - 1)
        return torch.where(one, first % self.width, 0), last

    def seen(self, g: Geometry) -> Tensor | None:
        return None

    def size(self) -> tuple[int, int] | None:
        return self.height * self.width, self.height * self.width

    def __repr__(self) -> str:
        return f"grid({self.height}, {self.width}, {self.radius})"


def prefix(n: int | Integers) -> Mask:
    """Every query sees the first n keys; n is an int, or integers (b,), one per batch row.

    ::

        causal() | prefix(2), t=s=4   █ █ · ·
                                      █ █ · ·
                                      █ █ █ ·
                                      █ █ █ █
    """
    if isinstance(n, (Tensor, list, tuple, np.ndarray)):
        return _Prefix(integers(n, "n"))
    return _Prefix(whole_number(n, "n", 0))


def padding(lengths: Integers) -> Mask:
    """Every query of batch row i sees the first ``lengths[i]`` keys; lengths (b,), a list will do.

    ::

        padding([2]), t=2, s=4   █ █ · ·
                                 █ █ · ·

    A row of length 0 attends to nothing, so its result is exactly zero (contract 4).
    """
    return _Padding(integers(lengths, "lengths"))


def grid(height: int, width: int, radius: int) -> Mask:
    """Pixels of an image (row after row) see the square of ``radius`` pixels around them.

    ::

        grid(1, 4, 1)   █ █ · ·
                        █ █ █ ·
                        · █ █ █
                        · · █ █
    """
    sides = whole_number(height, "height", 1), whole_number(width, "width", 1)
    return _Grid(*sides, whole_number(radius, "radius", 0))
