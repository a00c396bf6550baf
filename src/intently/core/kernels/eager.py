"""The plain formula on one screen: it materialises the (…, t, s) matrix and supports every call."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from intently.core.kernels.problem import Kernel, Problem, Span
from intently.core.masks.geometry import cut_right
from intently.foundation.arrays import valued


def weights(problem: Problem, rows: Tensor | None = None) -> Tensor:
    """Weights (…, rows, s) in the compute dtype; rows that may attend to nothing are zero."""
    z, empty = _masked(problem, rows)
    if z.shape[-1] == 0:
        return z
    w = torch.softmax(z, -1)
    w = w if problem.sinks is None else w[..., :-1]
    return w if empty is None else w.masked_fill(empty, 0)


def entries(problem: Problem, rows: Tensor | None = None) -> Tensor:
    """Weights (…, rows, s) for display: 0 where masked, even for a NaN query."""
    w = weights(problem, rows)
    if problem.mask is None or not w.numel():
        return w
    if valued(w) and not bool(w[..., :1].isnan().any()):
        return w
    return problem.clear(w, rows, None)


def lse(problem: Problem, rows: Tensor | None = None) -> Tensor:
    """log(Σ exp z + exp sink) of each query (…, rows); −∞ where no key may be attended to."""
    z, empty = _masked(problem, rows)
    if z.shape[-1] == 0:
        return z.new_full(z.shape[:-1], -math.inf)
    total = torch.logsumexp(z, -1)
    return total if empty is None else total.masked_fill(empty[..., 0], -math.inf)


def _masked(problem: Problem, rows: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Logits, −∞ where masked, with the sink as last column; and the rows that are all −∞.

    Those rows hold 0 instead of −∞, so that no derivative is NaN; the caller removes them.
    """
    z = problem.ready().masked(rows)
    if problem.sinks is not None:
        sinks = problem.sinks.to(z.dtype)
        sinks = sinks[..., None, None] if sinks.ndim else sinks
        z = torch.cat([z, sinks.expand(*z.shape[:-1], 1)], -1)
    elif z.shape[-1] == 0 or (problem.mask is None and problem.bias is None):
        return z, None
    empty = z.detach().amax(-1, keepdim=True) == -math.inf
    return z.masked_fill(empty, 0), empty


class Eager(Kernel):
    """y = weights @ v with the whole matrix: O(t·s) memory, any score, mask and derivative."""

    name = "eager"
    note = "every derivative, forward mode, torch.func and torch.compile"

    def writes(self, problem: Problem, v: Tensor) -> str | None:
        return "builds the whole t × s matrix"

    def memory(self, problem: Problem, v: Tensor) -> int:
        return 2 * problem.matrix_bytes()

    def multiply(self, problem: Problem, v: Tensor) -> Tensor:
        dropping = Dropping(*drawn(problem), problem.dropout) if problem.dropout else None
        return product(problem, v, dropping)


def product(problem: Problem, v: Tensor, dropping: Dropping | None) -> Tensor:
    """Y (…, t, e) = weights @ v, the weights thinned by ``dropping``."""
    w = weights(problem)
    if dropping is not None:
        w = w * dropping.factors(None, None, w.dtype)
    (v,) = problem.without_unseen(v)
    values = problem.per_query_head(v).to(w.dtype)
    return (w @ values).to(problem.q.dtype)


class Dropping:
    """Dropout that any tile regenerates: random numbers of rows (…, t, 1) and columns (1, s).

    The share ``rate`` is dropped. Random numbers for every weight, drawn one after the other on a
    CPU, cost more than the attention itself, and the backward pass would need them again. Instead,
    two, one per row and one per column, are mixed for each weight.

    Source of the mixing function: Wellons 2018, "Prospecting for Hash Functions" (lowbias32).
    """

    def __init__(self, rows: Tensor, cols: Tensor, rate: float) -> None:
        self.rows, self.cols, self.rate = rows, cols, rate

    def part(self, cut: tuple[slice, ...]) -> Dropping:
        """Return the same dropout under one slice for each leading axis."""
        return Dropping(cut_right(self.rows, cut), self.cols, self.rate)

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
