"""Statistics of the weights by the native kernel: no tile of the matrix ever leaves the cache.

What a query knows of itself (lse, entropy, largest weights, distance, mass) takes one pass over the
keys, and any number of them the same pass. What sums over queries needs every lse before: two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from intently.core.kernels.native import describing
from intently.core.kernels.native.describing import NativeOperands, operands
from intently.core.kernels.problem import Problem
from intently.core.masks import Mask

MOST = 64
"""Keys per query that the kernel finds at most."""

SHARES = 16
"""Tasks into which column sums are cut at least."""

COLUMNS = 2048
"""Columns of a picture at most: their sums stay in the cache."""

MOST_HEADS = 64
"""Heads whose weights are held together at most."""

SUMS = (
    *("entropy", "confidence", "sink", "self", "previous", "distance", "shared"),
    *("duplicate", "induction"),
    *("attending", "self_count", "previous_count", "again"),
)
"""The sums of `heads`, in the order of the compiled module."""


def by_query(
    p: Problem, names: Iterable[str], n: int = 0, keys: Tensor | None = None
) -> dict[str, Tensor]:
    """Statistics of every query (…, t) in one pass; ``top`` and ``top_keys`` are (…, t, n).

    ``keys`` (s,) says which keys count in ``mass``.
    """
    o = _operands(p)
    found: dict[str, Tensor] = {}
    for name in names:
        if name == "top":
            found["top"] = o.empty(*o.lead, o.t, n)
            found["top_keys"] = o.empty(*o.lead, o.t, n, dtype=torch.long)
        else:
            kind = torch.long if name == "argmax" else torch.float32
            found[name] = o.empty(*o.lead, o.t, 1, dtype=kind)
    flags = None if keys is None else keys.view(torch.uint8)[None]
    o.run(describing.MEASURE, **found, top_n=n, flags=flags)
    return {name: x if name.startswith("top") else x[..., 0] for name, x in found.items()}


def received(p: Problem) -> Tensor:
    """Column sums (…, s), collected in float64."""
    o = _operands(p)
    leads = math.prod(o.lead)
    parts = max(1, min(SHARES // max(1, leads), -(-o.t // 64)))
    sums = o.empty(max(1, leads * parts), o.s, dtype=torch.float64).zero_()
    o.run(describing.RECEIVE, received=sums, parts=parts)
    return sums.view(*o.lead, parts, o.s).sum(-2).float()


def picture(p: Problem, rows: int, cols: int, reduce: str) -> Tensor:
    """Sums or maxima of cells (…, rows, cols)."""
    o = _operands(p)
    found = o.empty(*o.lead, rows, cols).zero_()
    o.run(
        describing.PICTURE, picture=found, cell_rows=rows, cell_cols=cols, largest=reduce == "max"
    )
    return found


def heads(
    p: Problem, sought: Sequence[Mask], again: Tensor | None, counted: Tensor | None
) -> dict[str, Tensor] | None:
    """Sums over the queries of every head (…), by the names of `SUMS`, from one walk over the keys.

    ``sought`` holds the masks of ``duplicate`` and ``induction``; ``again`` and ``counted`` (…, t)
    say whose token has appeared before, and which queries count. None where the mask is not the
    same in all heads.
    """
    o = _operands(p)
    programs = tuple(describing.program(mask, p.geometry) for mask in sought)
    steps = [step for program in (o.mask, *programs) for step in program]
    tensors = [x for step in steps for x in step[4:] if isinstance(x, Tensor)]
    each = o.lead[-1] if o.lead else 1
    if len(steps) > describing.STEPS or not 0 < each <= MOST_HEADS:
        return None
    if any(x.shape[-3:-2] not in ((), (1,)) for x in tensors):
        return None
    items = math.prod(o.lead[:-1])
    parts = max(1, min(SHARES // max(1, items), -(-o.t // 64)))
    sums = o.empty(items * parts * each, len(SUMS), dtype=torch.float64).zero_()
    firsts = o.empty(items * parts, 1, dtype=torch.long).fill_(o.s)
    flags = {"again": again, "counted": counted}
    rows = {n: x.view(torch.uint8)[..., None] for n, x in flags.items() if x is not None}
    o.run(describing.HEADS, sought=programs, sums=sums, firsts=firsts, parts=parts, **rows)
    sums, firsts = sums.view(items, parts, each, -1), firsts.view(items, parts, 1)
    early = firsts == firsts.amin(1, keepdim=True)
    found = dict(zip(SUMS, sums.unbind(-1)))
    found["sink"] = found["sink"].where(early, 0)
    return {name: x.sum(1).view(o.lead).float() for name, x in found.items()}


def _operands(p: Problem) -> NativeOperands:
    with torch.no_grad():
        return operands(p, p.k[..., :0], None)  # no values
