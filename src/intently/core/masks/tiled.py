"""Matrices in tiles, most of which are equal: masks and biases of any regular shape.

A matrix (…, t, s) of blocks, windows or global keys has few tiles that differ. ``index`` (…, R, C)
says which of the ``tiles`` (n, r, c) stands where; the first tile stands for nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from intently.core.masks.closed_forms import FULL
from intently.core.masks.geometry import Cut, Geometry, broadcasts, cut_right, pick
from intently.core.masks.mask import Mask
from intently.errors import ArgumentError, build, shape_of


def tile_of(index: Tensor, tiles: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """The entries (…, len(rows), len(cols)) of some rows and columns."""
    r, c = tiles.shape[-2:]
    which = index[..., (rows // r)[:, None], cols // c].long()
    return tiles[which, (rows % r)[:, None], cols % c]


def entry_of(
    g: Geometry, index: Tensor, tiles: Tensor, at: tuple[Tensor, ...], i: Tensor, j: Tensor
) -> Tensor:
    """The entries at single places: one index tensor for each axis of (…, t, s)."""
    r, c = tiles.shape[-2:]
    place = (*at, i // r, j // c)
    which = pick(g, index, place[len(place) - index.ndim :]).long()
    return tiles.to(g.device)[which, i % r, j % c]


def check_tiles(g: Geometry, index: Tensor, tiles: Tensor, name: str) -> None:
    """Raise `ArgumentError` if tiles do not cover the matrix ``g``."""
    r, c = tiles.shape[-2:]
    want = (*g.lead, -(-g.t // r), -(-g.s // c))
    if not broadcasts(tuple(index.shape), want) or tuple(index.shape[-2:]) != want[-2:]:
        expected = f"tiles that cover (…, t, s) = {g.shape}, index {want}"
        raise build(ArgumentError, name, expected, shape_of(index))


class Tiled(Mask):
    """A mask made of boolean ``tiles`` (n, r, c); ``index`` (…, R, C) says which stands where."""

    def __init__(self, index: Tensor, tiles: Tensor) -> None:
        super().__init__(index, tiles)
        self.index, self.tiles = index, tiles

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return tile_of(self.index, self.tiles, rows, cols)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return entry_of(g, self.index, self.tiles, lead, i, j)

    def check(self, g: Geometry) -> None:
        check_tiles(g, self.index, self.tiles, "mask")

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        if (rows, cols) != tuple(self.tiles.shape[-2:]):
            return super().blocks(g, rows, cols)
        found = self.tiles.any((-2, -1)).int() + self.tiles.all((-2, -1)).int()
        states = found[self.index.long()].flatten(0, -3)
        least, most = states.amin(0), states.amax(0)
        return torch.where(least == FULL, least, most.clamp_max(FULL - 1)).to(torch.int8)

    def part(self, cut: Cut, g: Geometry) -> Mask:
        return Tiled(cut_right(self.index, cut), self.tiles)

    def lead(self) -> tuple[int, ...]:
        return tuple(self.index.shape[:-2])

    def __repr__(self) -> str:
        *_, r, c = self.tiles.shape
        return f"tiled({len(self.tiles)} tiles of {r}×{c})"
