"""Masks written out: boolean tensors; and masks of which leading indices were picked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from intently.errors import KindError, build
from intently.foundation.arrays import Numbers
from intently.masks.blocks import most, reduced
from intently.masks.geometry import Cut, Geometry, check_broadcast, copied, cut_right, entries, pick
from intently.masks.queries import unless_all
from intently.masks.rule import Mask


class Allowed(Mask):
    """A boolean tensor that broadcasts to (…, t, s)."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor)
        self.tensor = tensor

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        x = self._two_axes(g)
        return entries(entries(x, -2, rows), -1, cols)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        index = (*lead, i, j)
        return pick(g, self.tensor, index[len(index) - self.tensor.ndim :])

    def check(self, g: Geometry) -> None:
        if self.tensor.device != g.device:
            raise build(
                KindError,
                "mask",
                f"a boolean tensor on the device of q, {g.device}",
                f"one on {self.tensor.device}",
                fix="move it once with .to(…), not in every call",
            )
        check_broadcast(self.tensor, g, "mask")

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        found = reduced(self._two_axes(g), rows, cols)
        return found.expand(-(-g.t // rows), -(-g.s // cols))

    def seen(self, g: Geometry) -> Tensor | None:
        x = self._two_axes(g)
        if g.t == 0:
            x = x[..., :0, :]
        seen = most(x, -2).bool() if x.numel() else x.any(-2)
        return unless_all(seen.expand(*x.shape[:-2], g.s))

    def part(self, cut: Cut, g: Geometry) -> Mask:
        return Allowed(cut_right(self.tensor, cut))

    def lead(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[:-2])

    def size(self) -> tuple[int, int] | None:
        t, s = (1, 1, *self.tensor.shape)[-2:]
        return None if t == s == 1 else (s if t == 1 else t, t if s == 1 else s)

    def _two_axes(self, g: Geometry) -> Tensor:
        x = self.tensor
        return x.reshape((1,) * max(0, 2 - x.ndim) + tuple(x.shape))

    def __repr__(self) -> str:
        return f"allowed({'×'.join(map(str, self.tensor.shape))} tensor)"


class Picked(Mask):
    """A mask at picked leading indices of the matrix it was laid over, as lists of indices pick.

    ``index`` (n, …) holds one index tensor for each of the n leading axes ``lead`` of that matrix.
    """

    def __init__(self, mask: Mask, index: Tensor, *lead: int) -> None:
        super().__init__(mask, index, *lead)
        self.mask, self.index, self.whole = mask, index, lead

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        block = self.mask.allow(g._replace(lead=self.whole), rows, cols)
        return block.expand(*self.whole, *block.shape[-2:])[tuple(self.index.to(g.device))]

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        index = tuple(pick(g, x, lead) for x in self.index)
        return self.mask.at(g._replace(lead=self.whole), index, i, j)

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        return self.mask.blocks(g._replace(lead=self.whole), rows, cols)

    def seen(self, g: Geometry) -> Tensor | None:
        seen = self.mask.seen(g._replace(lead=self.whole))
        return None if seen is None else seen.expand(*self.whole, g.s)[tuple(self.index)]

    def part(self, cut: Cut, g: Geometry) -> Mask:
        return Picked(self.mask, self.index[(slice(None), *cut)], *self.whole)

    def lead(self) -> tuple[int, ...]:
        return tuple(self.index.shape[1:])

    def size(self) -> tuple[int, int] | None:
        return self.mask.size()

    def extent(self) -> int:
        return self.mask.extent()

    def __repr__(self) -> str:
        return f"({self.mask!r})[{'×'.join(map(str, self.lead()))} picked]"


def indexed(mask: Mask, whole: Geometry, index: tuple[Any, ...]) -> Mask:
    """Return the mask under an index of the leading axes; without tensors it is the same there."""
    if not mask.tensors():
        return mask
    if all(isinstance(i, (int, slice)) for i in index):
        return mask.part((*index, *[slice(None)] * (len(whole.lead) - len(index))), whole)
    every = [torch.arange(n, device=whole.device) for n in whole.lead]
    picked = torch.stack(
        [x.expand(whole.lead)[index] for x in torch.meshgrid(*every, indexing="ij")]
    )
    return Picked(mask, picked, *whole.lead)


def allowed(tensor: Tensor | Numbers) -> Mask:
    """A boolean tensor that broadcasts to (…, h, t, s) as NumPy does; True means attend.

    Lists and NumPy arrays of booleans are copied. Raises `KindError` for what is not boolean.
    """
    if not isinstance(tensor, Tensor):
        tensor = copied(tensor, "mask", "a boolean tensor, True where a query may attend")
    if tensor.dtype is not torch.bool:
        raise build(
            KindError,
            "mask",
            "a boolean tensor, True where a query may attend",
            f"dtype {tensor.dtype}",
            "additive masks are biases",
            "write `mask = additive == 0`, or hand it in as bias=",
        )
    return Allowed(tensor)


def as_mask(mask: Mask | Tensor | Numbers, device: torch.device | None = None) -> Mask:
    """A mask as it is; booleans as `allowed`, lists and arrays of them on ``device``."""
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, Tensor):
        return allowed(mask)
    if isinstance(mask, (list, tuple, np.ndarray)):
        return allowed(mask).replaced(lambda x: x.to(device))
    raise build(
        KindError,
        "mask",
        "a mask such as it.causal(), or a boolean tensor",
        type(mask).__name__,
        "True means attend in every mask",
    )
