"""Masks and biases as a page stores them: a mask as bits, a bias as few numbers as possible.

Most biases depend only on the distance (ALiBi, T5's buckets) or only on the key; these take t + s −
1 or s numbers per head. Biases only need to be exact where the mask allows attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from intently.core.biases import Bias
from intently.core.kernels.problem import Problem
from intently.core.masks import Geometry
from intently.core.masks.geometry import Cut
from intently.show.page.numbers.packing import check_size

BLOCK = 2**22
"""Entries of a mask or a bias that are computed together."""


@dataclass(frozen=True)
class Rule:
    """A bias in float32: of distances (n, t + s − 1), of keys (n, s), or dense (n, t, s).

    n is 1 or h. Distances count from j − i = 1 − t for query i and key j.
    """

    kind: Literal["distance", "key", "dense"]
    values: Tensor


class Laid(Bias):
    """The bias that a rule describes."""

    def __init__(self, kind: str, values: Tensor) -> None:
        super().__init__(kind, values)
        self.kind, self.values = kind, values

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        x = self.values if dtype is None else self.values.to(dtype)
        x = x if g.lead else x[0]
        if self.kind == "distance":
            return x[..., cols - rows[:, None] + g.t - 1]
        if self.kind == "key":
            return x[..., None, cols]
        return x[..., rows[:, None], cols]

    def part(self, cut: Cut, g: Geometry) -> Laid:
        if len(self.values) == 1 or not cut:
            return self
        heads = cut[-1] if isinstance(cut[-1], slice) else slice(cut[-1], cut[-1] + 1)
        return Laid(self.kind, self.values[heads])

    def __repr__(self) -> str:
        return f"{self.kind} bias"


def written(p: Problem) -> Tensor | None:
    """Return the mask of a problem (1 or h, t, s), True where a query may attend; None for none."""
    if p.mask is None:
        return None
    parts = [_headed(allow, rows, p) for rows, allow in _tiles(p, p.mask.allow)]
    return torch.cat(parts, -2)


def ruled(p: Problem, mask: Tensor | None) -> Rule | None:
    """Return the bias of a problem as few numbers; None if there is none or it is 0.

    ``mask`` (1 or h, t, s) is its dense mask: masked entries may have any bias. Raises
    `MemoryRefused` for a dense bias that is too large for a page.
    """
    if p.bias is None:
        return None
    first = found = _by_distance(p), _by_key(p)
    for rows, tile in _tiles(p, _tile(p)):
        tile = _headed(tile, rows, p)
        hidden = None if mask is None else ~mask[:, rows]
        found = tuple(rule for rule in found if _says(rule, rows, tile, hidden, p.geometry))
        if not found:
            break
    if found:
        return None if not bool(found[0].values.any()) else found[0]
    heads = max(len(rule.values) for rule in first)
    check_size(
        heads * p.geometry.t * p.geometry.s * 16 // 3,
        "its bias is dense, t × s numbers: it depends neither on the distance nor on the key alone",
    )
    dense = [_headed(tile, rows, p) for rows, tile in _tiles(p, _tile(p))]
    return Rule("dense", torch.cat(dense, -2))


def _by_distance(p: Problem) -> Rule:
    """Read the bias of every distance from the last row and the last column."""
    g = p.geometry
    last_row, last_column = torch.tensor([g.t - 1]), torch.tensor([g.s - 1])
    row = _headed(_tile(p)(g, last_row, torch.arange(g.s)), last_row, p)[:, 0]
    rows = torch.arange(g.t)
    column = _tile(p)(g, rows, last_column)
    column = column.float().reshape(-1, *column.shape[-2:])[..., 0].expand(-1, g.t)
    return Rule("distance", torch.cat([row.expand(len(column), -1), column.flip(-1)[:, 1:]], -1))


def _by_key(p: Problem) -> Rule:
    g = p.geometry
    last = torch.tensor([g.t - 1])
    return Rule("key", _headed(_tile(p)(g, last, torch.arange(g.s)), last, p)[:, 0])


def _says(rule: Rule, rows: Tensor, tile: Tensor, hidden: Tensor | None, g: Geometry) -> bool:
    """Return whether a rule gives the bias (n, rows, s) wherever it is not hidden."""
    mine = Laid(rule.kind, rule.values).tile(g._replace(lead=(1,)), rows, torch.arange(g.s))
    same = (mine == tile) | (mine.isnan() & tile.isnan())
    return bool((same if hidden is None else same | hidden).all())


def _tile(p: Problem) -> Callable[[Geometry, Tensor, Tensor], Tensor]:
    assert p.bias is not None
    bias = p.bias
    least = torch.finfo(torch.float32).min

    def tile(g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        x = bias.tile(g, rows, cols, torch.float64)
        return x.clamp_min(least).where(~x.isneginf(), x).float().cpu()

    return tile


def _tiles(
    p: Problem, ask: Callable[[Geometry, Tensor, Tensor], Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield blocks of rows, and what ``ask`` gives for them."""
    g = p.geometry
    heads = g.lead[-1] if g.lead else 1
    cols = torch.arange(g.s, device=g.device)
    for rows in torch.arange(g.t, device=g.device).split(max(1, BLOCK // max(1, heads * g.s))):
        yield rows.cpu(), ask(g, rows, cols).cpu()


def _headed(tile: Tensor, rows: Tensor, p: Problem) -> Tensor:
    """Return a tile (…, rows, s) of one item as (1 or h, rows, s)."""
    heads = tile.shape[-3] if tile.ndim > 2 else 1
    return tile.expand(*tile.shape[:-2], len(rows), p.geometry.s).reshape(heads, len(rows), -1)
