"""Rotary positions for blocks: queries and keys rotated together, with cached angles.

The angles depend only on the positions, so all layers, steps and calls share one table of their
cosines and sines. The formula is that of `Rotary`.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from intently.core.kernels.operands import transformed
from intently.core.positions import Rotary
from intently.foundation.arrays import valued


def turned(rotary: Rotary, x: Tensor, offset: int | Tensor, end: int) -> Tensor:
    """Heads (b, t, n, d) rotated to the positions ``offset + i`` < ``end``; offsets may be (b,).

    >>> x = torch.ones(1, 2, 1, 2)
    >>> turned(Rotary(2), x, 0, 2)[0, :, 0]
    tensor([[ 1.0000,  1.0000],
            [-0.3012,  1.3818]])
    """
    if not valued(x) or transformed() or by_length(rotary):
        return rotary(x.transpose(1, 2), offset).transpose(1, 2)
    dtype = torch.promote_types(x.dtype, torch.float32)
    cos, sin = _table(rotary, dtype, x.device).upto(end)
    t = x.shape[1]
    if isinstance(offset, int):
        cos, sin = cos[offset : offset + t, None], sin[offset : offset + t, None]
    else:
        at = offset[:, None] + torch.arange(t, device=x.device)
        cos, sin = cos[at, None], sin[at, None]
    width = cos.shape[-1]
    whole = width == x.shape[-1]
    y = x if whole else x[..., :width]
    y = y if y.dtype is dtype else y.to(dtype)
    if rotary.layout == "half":
        swapped = y.roll(width // 2, -1)
    else:
        swapped = y.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    y = (y * cos).addcmul_(swapped, sin).to(x.dtype)
    return y if whole else torch.cat([y, x[..., width:]], -1)


def by_length(rotary: Rotary) -> bool:
    """Whether the angles of all steps change when the text grows."""
    return rotary.scaling is not None and rotary.scaling.by_length


class Table:
    """Cosines and signed sines (n, width) of the first n positions; n doubles when it must.

    Threads share it: the pair is read and written as one value, never half of it.
    """

    def __init__(self, rotary: Rotary, dtype: torch.dtype, device: torch.device) -> None:
        self.rotary, self.dtype, self.device = rotary, dtype, device
        self.pair = torch.empty(0, 0), torch.empty(0, 0)

    def upto(self, end: int) -> tuple[Tensor, Tensor]:
        """Return the table for at least ``end`` positions."""
        pair = self.pair
        if end > len(pair[0]):
            with torch.inference_mode(False), torch.no_grad():
                pair = self.pair = self._made(max(2 * end, 256))
        return pair

    def _made(self, n: int) -> tuple[Tensor, Tensor]:
        angles = self.rotary.angles(n, dtype=self.dtype, device=self.device)
        gain = 1.0 if self.rotary.scaling is None else self.rotary.scaling.gain()
        cos, sin = angles.cos() * gain, angles.sin() * gain
        join = torch.cat if self.rotary.layout == "half" else _side_by_side
        return join([cos, cos], -1), join([-sin, sin], -1)


def _side_by_side(pair: list[Tensor], axis: int) -> Tensor:
    return torch.stack(pair, axis).flatten(-2)


@lru_cache(maxsize=16)
def _table(rotary: Rotary, dtype: torch.dtype, device: torch.device) -> Table:
    return Table(rotary, dtype, device)
