"""Masks of the first keys: prefixes and padding."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from intently.foundation.checks import whole_number
from intently.masks.closed_forms import Queries, Rows, edges, states
from intently.masks.geometry import Geometry, Integers, integers, lengths_may_change, pick, written
from intently.masks.mask import Mask


class First(Mask):
    """The first n keys, n an int or one per batch row."""

    per_key = True
    name = "n"

    def __init__(self, n: int | Tensor) -> None:
        super().__init__(n)
        self.n = n

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return cols[None, :] < self.counts(g)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        n = self.n
        return j < (pick(g, n, lead[: n.ndim]) if isinstance(n, Tensor) else n)

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        e, n = edges(g, rows, cols), self.counts(g)
        return states(g, rows, cols, e.left >= n.max(), e.right < n.min())

    def seen(self, g: Geometry) -> Tensor | None:
        return None if g.t and self.allows_all(g) else super().seen(g)

    def queries(self, g: Geometry) -> Rows:
        keys = torch.arange(g.s, device=g.device)
        last = torch.where(keys < self.counts(g)[..., 0], g.t - 1, -1)
        return [Queries(torch.zeros_like(last), last)]

    def check(self, g: Geometry) -> None:
        if isinstance(self.n, Tensor):
            g.align(self.n, self.name)

    def counts(self, g: Geometry) -> Tensor:
        """How many keys are seen, (…, 1, 1)."""
        if isinstance(self.n, Tensor) and self.n.numel():
            return g.align(self.n, self.name)
        return torch.tensor(0 if isinstance(self.n, Tensor) else self.n, device=g.device)[
            None, None
        ]

    def _most(self) -> int:
        return int(self.n.max()) if isinstance(self.n, Tensor) and self.n.numel() else 0


class _Prefix(First):
    def allows_all(self, g: Geometry) -> bool:
        return isinstance(self.n, int) and not lengths_may_change() and self.n >= g.s

    def extent(self) -> int:
        n = self._most() if isinstance(self.n, Tensor) else self.n
        return min(1024, max(16, 2 * n))

    def __repr__(self) -> str:
        return f"prefix({written(self.n)})"


class Padding(First):
    """The first ``n`` (b,) keys of each row."""

    name = "lengths"

    def size(self) -> tuple[int, int] | None:
        return None if self._most() < 1 else (self._most(), self._most())

    def __repr__(self) -> str:
        return f"padding({written(self.n)})"


def prefix(n: int | Integers) -> Mask:
    """Every query sees the first n keys; n is an int, or integers (b,), one per batch row.

    ::

        causal() | prefix(2), t=s=4   █ █ · ·
                                      █ █ · ·
                                      █ █ █ ·
                                      █ █ █ █
    """
    if isinstance(n, (Tensor, list, tuple, np.ndarray)):
        return _Prefix(integers(n, "n"))
    return _Prefix(whole_number(n, "n", 0))


def padding(lengths: Integers) -> Mask:
    """Every query of batch row i sees the first ``lengths[i]`` keys; lengths (b,), a tensor or a
    list.

    ::

        padding([2]), t=2, s=4   █ █ · ·
                                 █ █ · ·

    A row of length 0 attends to nothing, so its result is exactly zero (contract 4).
    """
    return Padding(integers(lengths, "lengths"))
