"""What statistics do with one block of weights: sum it by cells, find its largest entries."""

from __future__ import annotations

import torch
from torch import Tensor


class Cells:
    """An axis of ``n`` steps cut into ``count`` cells, which differ by at most one step."""

    def __init__(self, n: int, count: int, device: torch.device) -> None:
        self.n, self.count = n, count
        self.edges = -(-torch.arange(count + 1) * n // count)
        self.sizes = self.edges.diff().to(device)

    def of(self, span: slice) -> slice:
        """The cells that hold the steps of ``span``."""
        return slice(span.start * self.count // self.n, (span.stop - 1) * self.count // self.n + 1)

    def reduced(self, x: Tensor, span: slice, reduce: str) -> Tensor:
        """Sum or maximum over the steps of each cell, for x (…, steps of span, m)."""
        cells = self.of(span)
        edges = self.edges[cells.start : cells.stop + 1].clamp(span.start, span.stop) - span.start
        parts = x.split(edges.diff().tolist(), -2)
        if reduce == "amax":
            return torch.stack([part.amax(-2) for part in parts], -2)
        return torch.stack([part.sum(-2) for part in parts], -2)


def largest(w: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n largest of the last axis, and where they are.

    The n largest lie in the n groups with the largest maxima, so that long rows are read once.
    """
    group, steps = 64, w.shape[-1]
    count = steps // group
    if count < 4 * n:
        return w.topk(n, -1)
    head = w[..., : count * group].unflatten(-1, (count, group))
    best = head.amax(-1).topk(n, -1, sorted=False).indices
    inside = torch.arange(group, device=w.device)
    where = (best[..., None] * group + inside).flatten(-2)
    rest = torch.arange(count * group, steps, device=w.device).expand(*w.shape[:-1], -1)
    where = torch.cat([where, rest], -1)
    found, at = w.gather(-1, where).topk(n, -1)
    return found, where.gather(-1, at)
