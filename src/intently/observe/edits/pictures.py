"""Regions of an image, as the pixels of every resolution at which a model attends."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from intently.errors import ArgumentError, build


@dataclass(frozen=True, repr=False)
class region:  # noqa: N801 - written as a function: edits.region(0, 0, 0.5, 1)
    """The part of an image between two corners, in fractions of its height and width.

    ``aspect`` is width / height of the image. A pixel belongs to the region if its centre does, at
    every resolution. Raises `ArgumentError` unless 0 ≤ top < bottom ≤ 1 and 0 ≤ left < right ≤ 1.

    >>> region(0, 0.5, 1, 1).picture(2, 4)
    tensor([[False, False,  True,  True],
            [False, False,  True,  True]])
    """

    top: float
    left: float
    bottom: float
    right: float
    aspect: float = 1.0

    def __post_init__(self) -> None:
        for low, high in (("top", "bottom"), ("left", "right")):
            a, b = getattr(self, low), getattr(self, high)
            if not 0 <= a < b <= 1:
                fix = "give corners in fractions: edits.region(0, 0, 0.5, 1) is the upper half"
                raise build(ArgumentError, low, f"0 ≤ {low} < {high} ≤ 1", f"{a} and {b}", fix=fix)
        if not self.aspect > 0:
            raise build(ArgumentError, "aspect", "width / height, above 0", self.aspect)

    def __repr__(self) -> str:
        corners = f"{self.top:g}, {self.left:g}, {self.bottom:g}, {self.right:g}"
        return f"region({corners}{'' if self.aspect == 1 else f', aspect={self.aspect:g}'})"

    def picture(self, height: int, width: int) -> Tensor:
        """Which pixels (height, width) belong to the region, as booleans."""
        y, x = _centres(height), _centres(width)
        inside = (self.top <= y) & (y < self.bottom)
        return inside[:, None] & (self.left <= x) & (x < self.right)


def resized(picture: Tensor, height: int, width: int) -> Tensor:
    """The picture (H, W) at another resolution (height, width): what lies at the centres."""
    y, x = (
        (_centres(n) * size).long() for n, size in zip((height, width), picture.shape, strict=True)
    )
    return picture[y.to(picture.device)[:, None], x.to(picture.device)]


def grid(total: int, aspect: float) -> tuple[int, int] | None:
    """The height and width of ``total`` pixels whose width / height is ``aspect``, None without.

    Odd sizes may have been rounded, up or down, when they were halved.

    >>> grid(64, 1.0), grid(15, 6 / 9), grid(77, 1.0)
    ((8, 8), (5, 3), None)
    """
    sides = [(h, total // h) for h in range(1, total + 1) if total % h == 0]
    fitting = [(h, w) for h, w in sides if abs(w - h * aspect) < max(1.0, aspect)]
    return min(fitting, key=lambda side: abs(side[1] - side[0] * aspect), default=None)


def _centres(n: int) -> Tensor:
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n
