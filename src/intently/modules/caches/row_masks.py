"""Masks and biases over the keys that a cache holds where every row has kept others.

A rule is asked for all the places that any row has kept, once; each row then takes its own:

    row 0 of a window of 2, 1 sink, after 7 steps   0 5 6      asked for   0 2 3 5 6
    row 1, after 4                                  0 2 3
"""

from __future__ import annotations

import torch
from torch import Tensor

from intently.biases import Bias
from intently.masks import Geometry, Mask
from intently.masks.geometry import Cut, cut_left, pick


def row_places(cols: Tensor, sinks: int, gap: Tensor) -> Tensor:
    """Return where columns (s,) stand in the text of each row (b, s), as `at_places` for gaps (b,).

    >>> row_places(torch.arange(3), 1, torch.tensor([4, 1]))
    tensor([[0, 5, 6],
            [0, 2, 3]])
    """
    return cols + gap[:, None] * (cols >= sinks)


def _taken(block: Tensor, index: Tensor) -> Tensor:
    """Entries (b, …, t, s) of a block that broadcasts to (b, …, t, n), at each row's index (b, s).

    ``lead`` axes that the block lacks stay of size 1.
    """
    b, s = index.shape
    block = block.expand(b, *block.shape[1:])
    index = index.view(b, *(1,) * (block.ndim - 2), s)
    return block.gather(-1, index.expand(*block.shape[:-1], s))


def _asked(places: Tensor, cols: Tensor) -> tuple[Tensor, Tensor]:
    """All places (n,) of some columns, in order, and where each row finds its own (b, s)."""
    return torch.unique(places.index_select(-1, cols), return_inverse=True)


def _padded(block: Tensor, g: Geometry, cols: int) -> Tensor:
    """The block with all axes of (…, t, s), those that it lacks of size 1."""
    block = block.reshape(*(1,) * (len(g.lead) + 2 - block.ndim), *block.shape)
    return block.expand(*block.shape[:-1], cols)


class RowsMask(Mask):
    """A mask of the whole text of ``steps`` keys, over the keys at ``places`` (b, s) of each row.

    >>> import intently as it
    >>> print(RowsMask(it.causal(offset=3), torch.tensor([[0, 3, 4]]), 5).draw(1, 3))
    █ █ ·
    """

    def __init__(self, mask: Mask, places: Tensor, steps: int) -> None:
        super().__init__(mask, places, steps)
        self.mask, self.places, self.steps = mask, places, steps

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        places, index = _asked(self.places, cols)
        block = self.mask.allow(self._whole(g), rows, places)
        if self.places.ndim == 1:
            return block.expand(*block.shape[:-1], len(places)).index_select(-1, index)
        return _taken(_padded(block, g, len(places)), index)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        place = pick(g, self.places, (*lead[: self.places.ndim - 1], j))
        return self.mask.at(self._whole(g), lead, i, place)

    def check(self, g: Geometry) -> None:
        self.mask.check(self._whole(g))

    def part(self, cut: Cut, g: Geometry) -> RowsMask:
        inner = self.mask.part(cut, self._whole(g))
        return RowsMask(inner, cut_left(self.places, cut[: self.places.ndim - 1]), self.steps)

    def lead(self) -> tuple[int, ...]:
        return max(self.mask.lead(), tuple(self.places.shape[:-1]), key=len)

    def _whole(self, g: Geometry) -> Geometry:
        return g._replace(s=self.steps)

    def __repr__(self) -> str:
        return f"({self.mask!r}) over the keys that each row kept"


class RowsBias(Bias):
    """A bias of the whole text of ``steps`` keys, over those at ``places`` (b, s) of each row."""

    def __init__(self, bias: Bias, places: Tensor, steps: int) -> None:
        super().__init__(bias, places, steps)
        self.bias, self.places, self.steps = bias, places, steps

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        places, index = _asked(self.places, cols)
        block = self.bias.tile(self._whole(g), rows, places, dtype)
        if self.places.ndim == 1:
            return block.expand(*block.shape[:-1], len(places)).index_select(-1, index)
        return _taken(_padded(block, g, len(places)), index)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        place = pick(g, self.places, (*lead[: self.places.ndim - 1], j))
        return self.bias.at(self._whole(g), lead, i, place)

    def check(self, g: Geometry) -> None:
        self.bias.check(self._whole(g))

    def part(self, cut: Cut, g: Geometry) -> RowsBias:
        inner = self.bias.part(cut, self._whole(g))
        return RowsBias(inner, cut_left(self.places, cut[: self.places.ndim - 1]), self.steps)

    def _whole(self, g: Geometry) -> Geometry:
        return g._replace(s=self.steps)

    def __repr__(self) -> str:
        return f"({self.bias!r}) over the keys that each row kept"
