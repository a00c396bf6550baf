"""The states of a mask's blocks, for kernels: empty, partial or full.

The states are numbers in an order: of two rules joined with ``&`` a block has the least of both
states, with ``|`` the greatest, and ``~`` turns the order round. Where one of them is PARTIAL the
result may be emptier or fuller than that says; EMPTY and FULL are always certain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from intently.masks.geometry import Geometry

EMPTY, PARTIAL, FULL = 0, 1, 2


class Edges(NamedTuple):
    """First and last query (R, 1) and key (1, C) of each block, all included."""

    top: Tensor
    bottom: Tensor
    left: Tensor
    right: Tensor


def edges(g: Geometry, rows: int, cols: int) -> Edges:
    """Return the edges of the blocks of rows × cols entries of the matrix ``g``."""
    top = torch.arange(0, g.t, rows, device=g.device)[:, None]
    left = torch.arange(0, g.s, cols, device=g.device)[None]
    bottom = (top + rows - 1).clamp(max=g.t - 1)
    return Edges(top, bottom, left, (left + cols - 1).clamp(max=g.s - 1))


def states(g: Geometry, rows: int, cols: int, empty: Tensor, full: Tensor) -> Tensor:
    """Return int8 (⌈t/rows⌉, ⌈s/cols⌉) from the blocks known to be empty or full."""
    found = full.to(torch.int8) - empty.to(torch.int8) + PARTIAL
    return found.expand(-(-g.t // rows), -(-g.s // cols))


def reduced(allow: Tensor, rows: int, cols: int) -> Tensor:
    """Return the states of the blocks of a rule written out, (…, t or 1, s or 1)."""
    t, s = allow.shape[-2:]
    rows, cols = rows if t > 1 else 1, cols if s > 1 else 1
    t, s = -(-t // rows), -(-s // cols)
    if not allow.numel():
        return torch.full((t, s), EMPTY + FULL, dtype=torch.int8, device=allow.device)
    allow = allow.reshape(-1, *allow.shape[-2:])
    bands = allow.split(rows * step_within(rows * allow.shape[-1], 2**21), 1)
    return torch.cat([_band(band, rows, cols) for band in bands])


def _band(allow: Tensor, rows: int, cols: int) -> Tensor:
    some, every = most(allow, 0), least(allow, 0)
    return _over(some, rows, cols, most, 0) + _over(every, rows, cols, least, 1)


def most(x: Tensor, axis: int) -> Tensor:
    """``any`` as bytes, which PyTorch reduces many times faster than booleans."""
    return x.view(torch.uint8).amax(axis)


def least(x: Tensor, axis: int) -> Tensor:
    """``all`` as bytes."""
    return x.view(torch.uint8).amin(axis)


def _over(
    x: Tensor, rows: int, cols: int, reduce: Callable[[Tensor, int], Tensor], fill: int
) -> Tensor:
    """Reduce each block of x (t, s), bytes."""
    t, s = x.shape
    x = F.pad(x, (0, -s % cols, 0, -t % rows), value=fill)
    x = x.unflatten(0, (-1, rows)).unflatten(-1, (-1, cols))
    return reduce(reduce(x, -1), -2).to(torch.int8)


def step_within(size: int, memory: int) -> int:
    """How many rows of ``size`` entries fit in ``memory`` entries; at least one."""
    return max(1, memory // max(1, size))
