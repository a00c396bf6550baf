"""Dropout that any tile can regenerate from one random number per row and one per column.

Random numbers for every weight are drawn one after the other on a CPU, which costs more than the
attention itself, and the backward pass would need them again. Instead, two random numbers, one per
row and one per column, are mixed for each weight.

Source of the mixing function: Wellons 2018, "Prospecting for Hash Functions" (lowbias32).
"""

from __future__ import annotations

import torch
from torch import Tensor

from intently.kernels.problem import Problem, Span, cut_lead


class Dropping:
    """Random numbers of rows (…, t, 1) and columns (1, s); the share ``rate`` is dropped."""

    def __init__(self, rows: Tensor, cols: Tensor, rate: float) -> None:
        self.rows, self.cols, self.rate = rows, cols, rate

    def part(self, cut: tuple[slice, ...]) -> Dropping:
        """Return the same dropout under one slice for each leading axis."""
        return Dropping(cut_lead(self.rows, cut), self.cols, self.rate)

    def factors(self, rows: Span, cols: Span, dtype: torch.dtype) -> Tensor:
        """0 for weights that are dropped, 1 / (1 − rate) for those that stay."""
        mine = self.rows if rows is None else self.rows[..., rows, :]
        x = mine + (self.cols if cols is None else self.cols[..., cols])
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - 2**32)):
            x ^= (x >> shift) & (2 ** (32 - shift) - 1)
            x *= factor
        x ^= (x >> 16) & 0xFFFF
        stays = x >= round(self.rate * 2**32) - 2**31
        return stays.to(dtype).mul_(1 / (1 - self.rate))


def drawn(problem: Problem) -> tuple[Tensor, Tensor]:
    """Draw the numbers of rows and columns from PyTorch's generator."""
    *lead, t, s = problem.geometry.shape
    options = {"dtype": torch.int32, "device": problem.q.device}
    low, high = -(2**31), 2**31
    return (
        torch.randint(low, high, (*lead, t, 1), **options),
        torch.randint(low, high, (1, s), **options),
    )
