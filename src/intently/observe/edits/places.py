"""Batch rows, heads, rows and keys by name: indices, slices, texts, booleans, regions of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from intently.errors import ArgumentError, KindError, build
from intently.foundation.tokens import bare


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


Steps: TypeAlias = "int | str | slice | Sequence[int | str] | Tensor | region | None"
"""Positions in a text, negative ones from its end; texts of tokens; booleans; None for all.

Of an image: a region, or a picture (H, W) of booleans.
"""


class Axis:
    """The steps of an axis: ``at`` (n,) are their positions in the whole text, of ``total`` steps.

    ``tokens`` are the texts of the whole text, as far as they are known.
    """

    def __init__(self, name: str, at: Tensor, total: int, tokens: Sequence[str] | None) -> None:
        self.name, self.at, self.total, self.tokens = name, at, total, tokens

    def chosen(self, steps: Steps) -> Tensor:
        """Which of the axis' steps are meant, as booleans (n,).

        A position beyond the text chooses nothing: a generation may not have reached it yet.
        Raises `ArgumentError` for a text that no token has, and `KindError` for anything that
        names no steps.
        """
        if steps is None:
            return torch.ones_like(self.at, dtype=torch.bool)
        if isinstance(steps, slice):
            places = range(*steps.indices(self.total))
            return torch.isin(self.at, torch.tensor(places, device=self.at.device))
        if isinstance(steps, region):
            return self._where(steps.picture(*self._grid(steps.aspect)).flatten())
        if isinstance(steps, Tensor) and steps.dtype is torch.bool:
            return self._where(steps)
        if isinstance(steps, Tensor) and not steps.is_floating_point() and steps.ndim < 2:
            steps = steps.reshape(-1).tolist()
        listed = [steps] if isinstance(steps, (int, str)) else steps
        if not isinstance(listed, Sequence) or not all(map(_names, listed)):
            expected = "positions, texts of tokens, a slice, or booleans (n,)"
            raise build(KindError, self.name, expected, repr(steps))
        places = [place for step in listed for place in self._places(step)]
        return torch.isin(self.at, torch.tensor(places, dtype=torch.long, device=self.at.device))

    def _where(self, steps: Tensor) -> Tensor:
        if steps.ndim == 2 and steps.numel():
            height, width = steps.shape
            steps = resized(steps, *self._grid(width / height)).flatten()
        if steps.ndim != 1:
            expected = "booleans (n,), or a picture (H, W) of them"
            raise build(ArgumentError, self.name, expected, f"shape {tuple(steps.shape)}")
        steps = steps.to(self.at.device)
        known = self.at < len(steps)
        return known & steps[self.at.clamp(max=max(0, len(steps) - 1))] if len(steps) else known

    def _grid(self, aspect: float) -> tuple[int, int]:
        """The height and width of the image whose pixels the steps are."""
        found = grid(self.total, aspect)
        if found is None:
            expected = f"the pixels of an image, {aspect:g} times as wide as it is high"
            fix = "edits.region(…, aspect=width / height); the keys of a prompt are words"
            raise build(ArgumentError, self.name, expected, f"{self.total} steps", fix=fix)
        return found

    def _places(self, step: int | str) -> list[int]:
        if isinstance(step, int):
            return [step if step >= 0 else self.total + step]
        if self.tokens is None:
            expected, got = "positions, since the tokens are not known here", repr(step)
            fix = (
                "pass it.edit(model, edits, tokens=texts), (source, target) for two texts, and "
                'name the layers that read them, as {"*.attn2": edit}'
            )
            raise build(ArgumentError, self.name, expected, got, fix=fix)
        found = [n for n, text in enumerate(self.tokens) if step in (text, bare(text))]
        if found:
            return found
        expected = "the text of a token"
        raise build(ArgumentError, self.name, expected, repr(step), f"they are {self.tokens}")


class Whole(Axis):
    """An axis whose n steps are all in the call: heads, or batch rows."""

    def __init__(self, name: str, n: int, device: torch.device) -> None:
        super().__init__(name, torch.arange(n, device=device), n, None)

    def _places(self, step: int | str) -> list[int]:
        if isinstance(step, str) or not -self.total <= step < self.total:
            raise build(ArgumentError, self.name, f"numbers below {self.total}", repr(step))
        return super()._places(step)

    def _grid(self, aspect: float) -> tuple[int, int]:
        expected = f"numbers, a slice, or booleans ({self.total},)"
        raise build(KindError, self.name, expected, "a region of an image")

    def _where(self, steps: Tensor) -> Tensor:
        if tuple(steps.shape) != (self.total,):
            got = f"shape {tuple(steps.shape)}"
            raise build(ArgumentError, self.name, f"booleans ({self.total},)", got)
        return super()._where(steps)


def _names(step: object) -> bool:
    return isinstance(step, (int, str)) and not isinstance(step, bool)
