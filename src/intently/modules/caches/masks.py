"""Masks and biases over the keys that a cache holds, which are not always all that there were."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from intently.biases import Bias
from intently.foundation.values import Value
from intently.masks import Geometry, Mask, padding
from intently.masks.geometry import Cut
from intently.masks.queries import Rows

V = TypeVar("V", bound=Value)


def standing(value: V, offset: Tensor) -> V:
    """Return a mask or bias whose queries stand at ``offset`` (b,) where it says nothing else.

    >>> import intently as it
    >>> standing(it.causal() & it.window(2, 0), torch.tensor([3, 5]))
    causal(offset=[3, 5]) & window(2, 0, offset=[3, 5])
    """
    if getattr(value, "offset", 0) is None:  # the last part of every value that has one
        return type(value)(*value.parts[:-1], offset)
    parts = [standing(part, offset) if isinstance(part, Value) else part for part in value.parts]
    return type(value)(*parts)


def _whole(g: Geometry, gap: int) -> Geometry:
    return g._replace(s=g.s + gap)


def at_places(cols: Tensor, sinks: int, gap: int) -> Tensor:
    """Return where columns stand in the whole text; those from ``sinks`` on are behind the gap."""
    return cols + gap * (cols >= sinks)


class Written(Mask):
    """The first ``lengths`` (b,) keys, where a cache holds zeros after them.

    It is `padding`, but says that what it hides is harmless: kernels need not clear it again.
    """

    per_key = True

    def __init__(self, lengths: Tensor) -> None:
        super().__init__(lengths)
        self.rows = padding(lengths)

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return self.rows.allow(g, rows, cols)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return self.rows.at(g, lead, i, j)

    def check(self, g: Geometry) -> None:
        self.rows.check(g)

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        return self.rows.blocks(g, rows, cols)

    def seen(self, g: Geometry) -> None:
        """Nothing has to be cleared."""

    def queries(self, g: Geometry) -> Rows:
        return self.rows.queries(g)

    def __repr__(self) -> str:
        return repr(self.rows)


class KeptMask(Mask):
    """A mask of the whole text, over its first ``sinks`` keys and those after a ``gap``.

    ::

        causal(), sinks=1, gap=2, t=1, s=3   █ █ █      of   █ · · █ █
    """

    def __init__(self, mask: Mask, sinks: int, gap: int) -> None:
        super().__init__(mask, sinks, gap)
        self.mask, self.sinks, self.gap = mask, sinks, gap

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return self.mask.allow(_whole(g, self.gap), rows, at_places(cols, self.sinks, self.gap))

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return self.mask.at(_whole(g, self.gap), lead, i, at_places(j, self.sinks, self.gap))

    def check(self, g: Geometry) -> None:
        self.mask.check(_whole(g, self.gap))

    def part(self, cut: Cut, g: Geometry) -> KeptMask:
        return KeptMask(self.mask.part(cut, _whole(g, self.gap)), self.sinks, self.gap)

    def lead(self) -> tuple[int, ...]:
        return self.mask.lead()

    def __repr__(self) -> str:
        return f"({self.mask!r}) without keys {self.sinks} … {self.sinks + self.gap - 1}"


class KeptBias(Bias):
    """A bias of the whole text, over its first ``sinks`` keys and those after a ``gap``."""

    def __init__(self, bias: Bias, sinks: int, gap: int) -> None:
        super().__init__(bias, sinks, gap)
        self.bias, self.sinks, self.gap = bias, sinks, gap

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        cols = at_places(cols, self.sinks, self.gap)
        return self.bias.tile(_whole(g, self.gap), rows, cols, dtype)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return self.bias.at(_whole(g, self.gap), lead, i, at_places(j, self.sinks, self.gap))

    def check(self, g: Geometry) -> None:
        self.bias.check(_whole(g, self.gap))

    def part(self, cut: Cut, g: Geometry) -> KeptBias:
        return KeptBias(self.bias.part(cut, _whole(g, self.gap)), self.sinks, self.gap)

    def __repr__(self) -> str:
        return f"({self.bias!r}) without keys {self.sinks} … {self.sinks + self.gap - 1}"
