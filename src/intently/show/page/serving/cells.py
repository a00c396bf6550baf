"""Cells of a window, pooled from weights or from cached sums of blocks."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

How: TypeAlias = Literal["mean", "max"]
"""What a cell shows of its weights."""


def in_blocks(w: Tensor, lead: int, side: int) -> Tensor:
    """Return weights as blocks (rows, side, columns, side); the first column is at ``lead``."""
    tail = -(w.shape[1] + lead) % side
    w = torch.nn.functional.pad(w, (lead, tail, 0, -len(w) % side)).float()
    return w.unflatten(1, (-1, side)).unflatten(0, (-1, side))


def cell_of(at: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return the cell, of those that begin ``at``, of each step from start to stop − 1."""
    return np.searchsorted(at, np.arange(start, stop), "right") - 1


def across_columns(sums: Tensor, across: np.ndarray, rows: np.ndarray, how: How) -> Tensor:
    """Pool sums over ``rows`` rows each, or maxima, over columns."""
    if how == "max":
        return torch.from_numpy(np.maximum.reduceat(sums.numpy(), across[:-1], axis=1))
    total = np.add.reduceat(sums.numpy(), across[:-1], axis=1)
    return torch.from_numpy(total / rows[:, None] / np.diff(across)).float()


def highest(peaks: Tensor, at: np.ndarray, side: int) -> Tensor:
    """Return the largest of the blocks between edges ``at`` along the first axis, cut ones too."""
    first, last = at[:-1] // side, -(-at[1:] // side)
    ends = np.stack([first, last], 1).ravel()
    padded = torch.nn.functional.pad(peaks, (0, 0, 0, 1)).numpy()
    return torch.from_numpy(np.maximum.reduceat(padded, ends, axis=0)[::2])


def between(cells: Tensor, at: np.ndarray, side: int, n: int) -> Tensor:
    """Return sums of cached blocks between edges ``at`` along the first axis, n steps long.

    A cut block counts by its share.
    """
    whole = at // side
    last = -(-n // side) - 1
    size = np.where(whole >= last, n - last * side, side)
    share = torch.from_numpy((at - whole * side) / size).float()[:, None]
    begun = cells[np.minimum(whole, last)] * share
    of = torch.from_numpy(cell_of(whole, int(whole[0]), int(whole[-1])))
    total = cells.new_zeros(len(at) - 1, cells.shape[1])
    total.index_add_(0, of, cells[whole[0] : whole[-1]])
    return total + begun[1:] - begun[:-1]
