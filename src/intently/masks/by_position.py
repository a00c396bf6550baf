"""Masks that compare the positions of queries and keys: causal, window, dilated."""

from __future__ import annotations

import torch
from torch import Tensor

from intently.masks.geometry import Geometry, integers, whole_number
from intently.masks.rule import Mask, seen_exactly


def _positions(g: Geometry, rows: Tensor, offset: int | Tensor | None) -> Tensor:
    """Positions of the query rows, (…, len(rows), 1)."""
    if isinstance(offset, Tensor):
        return g.align(offset, "offset") + rows[:, None]
    return rows[:, None] + (g.s - g.t if offset is None else offset)


class _Positioned(Mask):
    """A rule about query positions, which an offset may move."""

    def __init__(self, offset: int | Tensor | None) -> None:
        if isinstance(offset, bool) or not (offset is None or isinstance(offset, int)):
            offset = integers(offset, "offset")
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
            return seen_exactly(self, g)
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
            return seen_exactly(self, g)
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
        return None if g.t >= self.step else seen_exactly(self, g)

    def __repr__(self) -> str:
        return f"dilated({', '.join(p for p in (str(self.step), self._offset_repr()) if p)})"


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
    return _Window(whole_number(before, "before", 0), whole_number(after, "after", 0), offset)


def dilated(step: int, offset: int | Tensor | None = None) -> Mask:
    """Queries see the keys whose distance is a multiple of ``step``.

    ::

        dilated(2), t=s=4   █ · █ ·
                            · █ · █
                            █ · █ ·
                            · █ · █
    """
    return _Dilated(whole_number(step, "step", 1), offset)


def is_plain_causal(mask: Mask) -> bool:
    """Whether the mask is `causal()` with the default offset, which kernels know by heart."""
    return isinstance(mask, _Causal) and mask.offset is None
