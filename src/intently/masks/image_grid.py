"""The mask of images: pixels see the pixels around them."""

from __future__ import annotations

from torch import Tensor

from intently.errors import ArgumentError, build
from intently.foundation.checks import whole_number
from intently.foundation.field_names import answered
from intently.masks.closed_forms import edges, image_edges, states
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
        empty, full = [], []
        for a, b, c, d in image_edges(edges(g, rows, cols), self.width, self.width):
            empty.append((c - b > self.radius) | (a - d > self.radius))
            full.append((d - a <= self.radius) & (b - c <= self.radius))
        return states(g, rows, cols, empty[0] | empty[1], full[0] & full[1])

    def seen(self, g: Geometry) -> Tensor | None:
        return None

    def size(self) -> tuple[int, int] | None:
        return self.height * self.width, self.height * self.width

    def __repr__(self) -> str:
        return f"grid({self.height}, {self.width}, {self.radius})"


@answered
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
