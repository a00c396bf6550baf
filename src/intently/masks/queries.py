"""Which queries may attend each key, in closed form: this decides whether a key is seen.

For most rules the queries that may attend key j stand in a row: from j on for `causal`, from
j − after to j + before for `window`, every step-th for `dilated`. Such rows of queries meet
(``&``), collect (``|``) and turn round (``~``) without asking any entry of the matrix.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

MOST = 8
"""Rules made of more ranges of queries than this are evaluated entry by entry."""


class Queries(NamedTuple):
    """For each key, queries first, first + step, … up to last (…, s); none where first > last."""

    first: Tensor
    last: Tensor
    step: int = 1

    def meet(self, other: Queries) -> Queries | None:
        """Return the queries in both; None where two different steps meet."""
        if self.step > 1 and other.step > 1:
            return None
        strided = self if self.step > 1 else other
        first = torch.maximum(self.first, other.first)
        if strided.step > 1:
            first = first + (strided.first - first) % strided.step
        return Queries(first, torch.minimum(self.last, other.last), strided.step)

    def others(self, t: int) -> list[Queries] | None:
        """Return the queries of t that are not in it; None for strides."""
        if self.step > 1:
            return None
        none = torch.zeros_like(self.first)
        before = Queries(none, (self.first - 1).clamp(max=t - 1))
        after = Queries((self.last + 1).clamp(min=0), none + (t - 1))
        return [before, after]


Rows = list[Queries] | None
"""The queries of each key as a union; None where no closed form is known."""


def both(left: Rows, right: Rows) -> Rows:
    """Return the queries in both unions."""
    if left is None or right is None or len(left) * len(right) > MOST:
        return None
    met = [a.meet(b) for a, b in product(left, right)]
    found = [m for m in met if m is not None]
    return found if len(found) == len(met) else None


def either(left: Rows, right: Rows) -> Rows:
    """Return the queries in at least one union."""
    if left is None or right is None or len(left) + len(right) > MOST:
        return None
    return left + right


def neither(rows: Rows, t: int) -> Rows:
    """Return the queries of t that are not in the union."""
    if rows is None:
        return None
    found: Rows = rows[0].others(t)
    for row in rows[1:]:
        found = both(found, row.others(t))
    return found


def any_of(rows: list[Queries]) -> Tensor:
    """Whether each key has a query (…, s)."""
    found = rows[0].first <= rows[0].last
    for row in rows[1:]:
        found = found | (row.first <= row.last)
    return found


def unless_all(seen: Tensor) -> Tensor | None:
    """Return None where every key is seen; on an accelerator and in a graph it is not asked."""
    batched = torch._C._functorch.is_batchedtensor(seen)  # pyright: ignore
    if seen.device.type != "cpu" or torch.compiler.is_compiling() or batched:
        return seen
    return None if bool(seen.all()) else seen
