"""The mask of images: pixels see those around them."""

from __future__ import annotations

import torch
from torch import Tensor

from intently.errors import ArgumentError, build
from intently.foundation.checks import whole_number
from intently.masks.closed_forms import Edges, edges, states
from intently.masks.geometry import Geometry
from intently.masks.mask import Mask


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
