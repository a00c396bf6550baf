"""A bias under an index of the leading axes of the matrix that it was made for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from intently.biases.rule import Bias
from intently.masks.geometry import Cut, Geometry, pick


class Picked(Bias):
    """A bias at picked leading indices, as lists of indices pick.

    ``index`` (n, …) holds one index tensor for each of the n leading axes ``lead`` of that matrix.
    """

    def __init__(self, bias: Bias, index: Tensor, *lead: int) -> None:
        super().__init__(bias, index, *lead)
        self.bias, self.index, self.whole = bias, index, lead

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        block = self.bias.tile(g._replace(lead=self.whole), rows, cols, dtype)
        return block.expand(*self.whole, *block.shape[-2:])[tuple(self.index.to(g.device))]

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        index = tuple(pick(g, x, lead) for x in self.index)
        return self.bias.at(g._replace(lead=self.whole), index, i, j)

    def part(self, cut: Cut, g: Geometry) -> Picked:
        return Picked(self.bias, self.index[(slice(None), *cut)], *self.whole)

    def __repr__(self) -> str:
        return f"({self.bias!r})[{'×'.join(map(str, self.index.shape[1:]))} picked]"


def indexed(bias: Bias, whole: Geometry, index: tuple[Any, ...]) -> Bias:
    """Return the bias under an index of the leading axes."""
    if all(isinstance(i, (int, slice)) for i in index):
        return bias.part((*index, *[slice(None)] * (len(whole.lead) - len(index))), whole)
    every = [torch.arange(n, device=whole.device) for n in whole.lead]
    grids = torch.meshgrid(*every, indexing="ij")
    return Picked(bias, torch.stack([x[index] for x in grids]), *whole.lead)
