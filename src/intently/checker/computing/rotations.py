"""Rotary positions: scores of rotated queries and keys, and the ways in which code rotates wrongly.

A kind is named as ``rotary in halves, base 10000, 4 of 8``; what follows a colon is a mistake.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

BASES = (10_000.0, 1_000_000.0, 500_000.0, 100.0)
"""Bases that are tried first."""
GRID = tuple(10 ** (x / 8) for x in range(4, 61))
"""Where a search for any other base begins."""

MISTAKES = {
    "keys are not rotated": "keys-not-rotated",
    "queries are not rotated": "keys-not-rotated",
    "angles of neighbours on halves": "rotary-pairs",
    "angles of halves on neighbours": "rotary-pairs",
    "queries one step ahead": "rotation-off-by-one",
    "queries one step behind": "rotation-off-by-one",
    "angles grow with heads": "rotary-over-heads",
    "keys are rotated twice": "cache-rotated-twice",
}
"""What a rotation may do wrong, and the name of that in the catalogue."""
BACKWARDS = "turned backwards"


@dataclass(frozen=True)
class Rotation:
    """How vectors are rotated: the base, how many numbers, which of them together, and how."""

    base: float
    width: int
    pairs: str
    way: str = ""
    shared: int = 1
    """How many query heads share a key head."""
    rates: tuple[float, ...] = ()
    """The angle of one step for each pair, where it is no power of the base."""

    def name(self, d: int) -> str:
        """The kind of score for heads of width d."""
        part = f", {self.width} of {d}" if self.width < d else ""
        way = f", {self.way}" if self.way == BACKWARDS else f": {self.way}" if self.way else ""
        if self.rates:
            return f"rotary in {self.pairs}, by its own table of rates{part}{way}"
        return f"rotary in {self.pairs}, base {self.base:.6g}{part}{way}"

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        """Products of rotated queries (…, h, t, d) and keys (…, h, s, d)."""
        t, s = q.shape[-2], k.shape[-2]
        keys = torch.arange(s, dtype=q.dtype)
        queries = keys[s - t :] if s >= t else torch.arange(t, dtype=q.dtype)
        if self.way == "angles grow with heads":
            queries = torch.arange(q.shape[-3], dtype=q.dtype)[:, None]
            keys = queries.div(self.shared, rounding_mode="floor")
        queries = queries + {"queries one step ahead": 1, "queries one step behind": -1}.get(
            self.way, 0
        )
        if self.way != "queries are not rotated":
            q = self.turned(q, queries)
        if self.way != "keys are not rotated":
            k = self.turned(k, 2 * keys if self.way == "keys are rotated twice" else keys)
        return q @ k.mT

    def turned(self, x: Tensor, at: Tensor) -> Tensor:
        """X (…, n, d) with each row turned by its position, (n,) or (h, 1)."""
        rates = self.base ** (-torch.arange(0, self.width, 2, dtype=x.dtype) / self.width)
        if self.rates:
            rates = torch.tensor(self.rates, dtype=x.dtype)
        angle = at[..., None] * rates * (-1 if self.way == BACKWARDS else 1)
        of_halves, of_neighbours = torch.cat([angle, angle], -1), angle.repeat_interleave(2, -1)
        turned, rest = x[..., : self.width], x[..., self.width :]
        if self.pairs == "halves":
            a, b = turned.chunk(2, -1)
            other, angles = torch.cat([-b, a], -1), of_halves
            if self.way == "angles of neighbours on halves":
                angles = of_neighbours
        else:
            other = torch.stack([-turned[..., 1::2], turned[..., ::2]], -1).flatten(-2)
            angles = of_neighbours
            if self.way == "angles of halves on neighbours":
                angles = of_halves
        return torch.cat([turned * angles.cos() + other * angles.sin(), rest], -1)


def usual(d: int) -> Iterator[Rotation]:
    """The rotations in use, for heads of width d."""
    for base in BASES:
        for width in dict.fromkeys((d, d // 2, d // 4)):
            if width >= 2 and width % 2 == 0:
                yield from (Rotation(base, width, pairs) for pairs in ("halves", "pairs"))


def tabled(tables: Iterable[tuple[float, ...]], d: int) -> Iterator[Rotation]:
    """Rotations by tables of rates that a module holds."""
    for rates in dict.fromkeys(tables):
        if 2 * len(rates) <= d:
            for pairs in ("halves", "pairs"):
                yield Rotation(0.0, 2 * len(rates), pairs, rates=rates)


def unusual(base: float, d: int) -> Iterator[Rotation]:
    """Rotations with a mistake in them, or backwards."""
    for pairs in ("halves", "pairs"):
        for way in (*MISTAKES, BACKWARDS):
            if way != f"angles of {'halves' if pairs == 'halves' else 'neighbours'} on {pairs}":
                yield Rotation(base, d, pairs, way)


def searched(off: Callable[[float], float], most: float) -> tuple[float, float]:
    """The base with the smallest residual, and that residual; ``most`` ends the search early."""
    tried = sorted((off(base), base) for base in GRID)
    best = tried[0]
    for _, start in tried[:2]:
        low, high = start / 10**0.125, start * 10**0.125
        for _ in range(45):  # golden section on a logarithmic axis
            a, b = (math.exp(math.log(low) + f * math.log(high / low)) for f in (0.382, 0.618))
            low, high = (low, b) if off(a) < off(b) else (a, high)
        middle = math.sqrt(low * high)
        best = min(best, (off(middle), middle))
        if best[0] < most:
            break
    return best[1], best[0]


def mistake_in(kind: str) -> tuple[str, str]:
    """The name in the catalogue of the mistake in a kind of score, and its words; "" if none."""
    said = kind.partition(": ")[2]
    return MISTAKES.get(said, ""), said
