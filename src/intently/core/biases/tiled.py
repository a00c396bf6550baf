"""A bias in tiles, most of which are empty or equal."""

from __future__ import annotations

import torch
from torch import Tensor

from intently.core.biases.bias import Bias
from intently.core.masks.geometry import Cut, Geometry, cut_right
from intently.core.masks.tiled import check_tiles, entry_of, tile_of


class TiledBias(Bias):
    """A bias made of ``tiles`` (n, r, c); ``index`` (…, R, C) says which stands where."""

    def __init__(self, index: Tensor, tiles: Tensor) -> None:
        super().__init__(index, tiles)
        self.index, self.tiles = index, tiles

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        found = tile_of(self.index, self.tiles, rows, cols)
        return found if dtype is None else found.to(dtype)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return entry_of(g, self.index, self.tiles, lead, i, j)

    def check(self, g: Geometry) -> None:
        check_tiles(g, self.index, self.tiles, "bias")

    def part(self, cut: Cut, g: Geometry) -> Bias:
        return TiledBias(cut_right(self.index, cut), self.tiles)

    def __repr__(self) -> str:
        *_, r, c = self.tiles.shape
        return f"tiled bias ({len(self.tiles)} tiles of {r}×{c})"
