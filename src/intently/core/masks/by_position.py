"""Masks that compare positions: causal, window, dilated, grid; and masks written in tiles."""

from __future__ import annotations

import torch
from torch import Tensor

from intently.core.masks.block_states import Queries, Rows, edges, image_edges, states
from intently.core.masks.geometry import (
    Geometry,
    Integers,
    Standing,
    as_offset,
    lengths_may_change,
    written,
)
from intently.core.masks.mask import Mask
from intently.errors import ArgumentError, build
from intently.foundation.checks import whole_number
from intently.foundation.field_names import answered

FAR = 2**60
"""Further than any key: reaches are cut to it, so that no sum overflows."""


class _Positioned(Standing, Mask):
    """A rule about query positions, which an offset may move."""

    def __init__(self, *reach: int, offset: int | Integers | None) -> None:
        offset = as_offset(offset)
        super().__init__(*reach, offset)
        self.offset = offset

    def sees(self, at: Tensor, keys: Tensor) -> Tensor:
        """Whether a query at position ``at`` sees a key; both broadcast."""
        raise NotImplementedError

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return self.sees(rows[:, None] + self.start(g), cols)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return self.sees(self.position(g, lead, i), j)

    def check(self, g: Geometry) -> None:
        if self.offset is not None:
            self.start(g)

    def extent(self) -> int:
        return min(1024, max(16, 2 * sum(self.parts[:-1])))

    def _written(self, name: str) -> str:
        *reach, offset = self.parts
        found = [str(n) for n in reach] + ([] if offset is None else [f"offset={written(offset)}"])
        return f"{name}({', '.join(found)})"

    def _starts(self, g: Geometry) -> Tensor:
        """Positions of query 0, (…, 1, 1), at least one."""
        start = self.start(g)
        if isinstance(start, Tensor):
            return start if start.numel() else start.new_zeros(1, 1)
        return torch.tensor(start, device=g.device)[None, None]


class Band(_Positioned):
    """Keys from position − ``before`` to position + ``after``, both included."""

    before: int
    after: int

    def allows_all(self, g: Geometry) -> bool:
        start = self.start(g)
        if isinstance(start, Tensor) or lengths_may_change():
            return False
        return start + self.after >= g.s - 1 and start + g.t - 1 - self.before <= 0

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        e, starts = edges(g, rows, cols), self._starts(g).flatten().sort().values
        low, high = e.left - e.bottom, e.right - e.top
        empty = _none_within(starts, low - self.after, high + self.before)
        full = (low - starts[-1] >= -self.before) & (high - starts[0] <= self.after)
        return states(g, rows, cols, empty, full)

    def seen(self, g: Geometry) -> Tensor | None:
        start = self.start(g)
        if not isinstance(start, Tensor) and not lengths_may_change() and g.t:
            last = start + g.t - 1
            if last + self.after >= g.s - 1 and start - self.before <= 0:
                return None
        return super().seen(g)

    def queries(self, g: Geometry) -> Rows:
        distance = torch.arange(g.s, device=g.device) - self._starts(g)[..., 0]
        first = (distance - self.after).clamp(min=0)
        return [Queries(first, (distance + self.before).clamp(max=g.t - 1))]


class _Causal(Band):
    before, after = FAR, 0

    def __init__(self, offset: int | Integers | None) -> None:
        super().__init__(offset=offset)

    def sees(self, at: Tensor, keys: Tensor) -> Tensor:
        return keys <= at

    def __repr__(self) -> str:
        return self._written("causal")


class _Window(Band):
    def __init__(self, before: int, after: int, offset: int | Integers | None) -> None:
        super().__init__(before, after, offset=offset)
        self.before, self.after = min(before, FAR), min(after, FAR)

    def sees(self, at: Tensor, keys: Tensor) -> Tensor:
        return (keys >= at - self.before) & (keys <= at + self.after)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        distance = j - self.position(g, lead, i)  # indices may be int32: reaches are not added
        return (distance >= -self.before) & (distance <= self.after)

    def __repr__(self) -> str:
        return self._written("window")


class Dilated(_Positioned):
    """Every ``step``-th key, counted from the position of the query."""

    def __init__(self, step: int, offset: int | Integers | None) -> None:
        super().__init__(step, offset=offset)
        self.step = step

    def sees(self, at: Tensor, keys: Tensor) -> Tensor:
        return (keys - at) % self.step == 0

    def allows_all(self, g: Geometry) -> bool:
        return self.step == 1

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        e = edges(g, rows, cols)
        low, span = e.left - e.bottom, e.right - e.left + e.bottom - e.top
        starts = torch.unique(self._starts(g) % self.step)
        twice = torch.cat([starts, starts + self.step])
        empty = _none_within(twice, low % self.step, low % self.step + span)
        full = ~empty & ((span == 0) | (self.step == 1)) & (len(starts) == 1)
        return states(g, rows, cols, empty, full)

    def seen(self, g: Geometry) -> Tensor | None:
        return None if g.t >= self.step else super().seen(g)

    def queries(self, g: Geometry) -> Rows:
        keys = torch.arange(g.s, device=g.device)
        first = (keys - self._starts(g)[..., 0]) % self.step
        return [Queries(first, torch.full_like(first, g.t - 1), self.step)]

    def __repr__(self) -> str:
        return self._written("dilated")


def _none_within(ordered: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Whether no number of a sorted list lies between low and high, both included."""
    return torch.searchsorted(ordered, low) == torch.searchsorted(ordered, high, right=True)


@answered
def causal(offset: int | Integers | None = None) -> Mask:
    """Each query sees the keys up to its own position.

    Query i is at ``offset + i`` (an int, or a tensor (b,) for ragged caches); by default at
    s − t + i, bottom-right::

        t=3, s=5   █ █ █ · ·      offset=0   █ · · · ·
                   █ █ █ █ ·                 █ █ · · ·
                   █ █ █ █ █                 █ █ █ · ·

    Source: Vaswani et al. 2017, section 3.2.3.
    """
    return _Causal(offset)


@answered
def window(before: int, after: int, offset: int | Integers | None = None) -> Mask:
    """Each query sees keys from position − before to position + after, both included.

    ::

        window(1, 0), t=s=4   █ · · ·
                              █ █ · ·
                              · █ █ ·
                              · · █ █
    """
    return _Window(whole_number(before, "before", 0), whole_number(after, "after", 0), offset)


@answered
def dilated(step: int, offset: int | Integers | None = None) -> Mask:
    """Queries see the keys whose distance is a multiple of ``step``.

    ::

        dilated(2), t=s=4   █ · █ ·
                            · █ · █
                            █ · █ ·
                            · █ · █
    """
    return Dilated(whole_number(step, "step", 1), offset)


def is_plain_causal(mask: Mask) -> bool:
    """Whether the mask is `causal()` with the default offset, which fused kernels implement."""
    return isinstance(mask, _Causal) and mask.offset is None


class _ImageGrid(Mask):
    def __init__(self, height: int, width: int, radius: int) -> None:
        super().__init__(height, width, radius)
        self.height, self.width, self.radius = height, width, radius

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return self.at(g, (), rows[:, None], cols)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        dy = (i // self.width - j // self.width).abs()
        dx = (i % self.width - j % self.width).abs()
        return (dy <= self.radius) & (dx <= self.radius)

    def allows_all(self, g: Geometry) -> bool:
        return self.radius >= max(self.height, self.width) - 1

    def check(self, g: Geometry) -> None:
        pixels = self.height * self.width
        if (g.t, g.s) != (pixels, pixels):
            expected = f"t = s = {self.height}·{self.width} = {pixels} for {self}"
            cause = "grid joins the pixels of one image, row after row"
            raise build(ArgumentError, "mask", expected, f"t={g.t}, s={g.s}", cause)

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
    return _ImageGrid(*sides, whole_number(radius, "radius", 0))
