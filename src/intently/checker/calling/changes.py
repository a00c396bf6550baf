"""Other content for inputs, of the same kind and shape."""

from __future__ import annotations

import torch
from torch import Tensor


def another(x: Tensor) -> Tensor:
    """Other content of the same kind."""
    if x.is_floating_point():
        return x.flip(-1) * 1.7 + 0.9
    if x.dtype == torch.bool:
        return x
    return torch.where(x > 3, x - 1, x + 1)


def changed_rows(x: Tensor, rows: tuple[int, ...]) -> Tensor:
    """With other content in some rows of the batch."""
    out = x.clone()
    for r in rows:
        out[r] = another(x[r])
    return out


def changed_at(x: Tensor, axis: int, i: int) -> Tensor:
    """With other content at one place of an axis."""
    out = x.clone()
    out.select(axis, i).copy_(another(x.select(axis, i)))
    return out
