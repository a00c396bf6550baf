"""Weights a few rows at a time, over the columns that these rows may attend, for statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from intently.kernels.problem import Problem
from intently.kernels.walk import GRAIN, Rows, walk


class Block(NamedTuple):
    """Weights (…, rows, cols) of a part of a matrix; its other columns in these rows are 0."""

    lead: tuple[slice, ...]
    rows: slice
    cols: slice
    weights: Tensor


def blocks(problem: Problem, size: int, together: bool = False) -> Iterator[Block]:
    """Yield all weights that may differ from 0, about ``size`` at a time, in the compute dtype.

    The caller may change a block in place. With ``together``, a block holds all heads of its rows.
    """
    p = problem.ready()
    heads = p.geometry.lead[-1:] or (1,)
    least = 4 * GRAIN * heads[0] * max(1, p.geometry.s) if together else 0
    for cut, found in walk(p, max(size, least), max(1, p.geometry.s)):
        piece = p.part(cut)
        heads = max(1, math.prod(piece.geometry.lead))
        for part in found:
            if not part.runs:
                continue
            cols = slice(part.runs[0].start, part.runs[-1].stop)
            step = max(1, size // (heads * (cols.stop - cols.start)))
            for start in range(part.start, part.stop, step):
                rows = slice(start, min(start + step, part.stop))
                yield Block(cut, rows, cols, _weights(piece, rows, cols, part))


def _weights(p: Problem, rows: slice, cols: slice, part: Rows) -> Tensor:
    z = p.logits(rows, cols)
    certain = all(run.full for run in part.runs)
    low = -math.inf if certain else p.hiding(z)
    at = cols.start
    for run in part.runs:
        z[..., at - cols.start : run.start - cols.start] = -math.inf
        if not run.full:
            view = z[..., run.start - cols.start : run.stop - cols.start]
            p.hide(view, rows, slice(run.start, run.stop), low)
        at = run.stop
    w, lse = p.softmax(z, p.open_limit if certain else low / 2)
    share = (lse > -math.inf).to(w.dtype)
    if p.sinks is not None:
        lse = lse.masked_fill(lse.isneginf(), 0)
        share = share * torch.sigmoid(lse - p.sinks.to(w.dtype)[..., None, None])
    w = w.mul_(share) if bool((share != 1).any()) else w
    return p.clear(w, rows, cols) if bool(lse.isnan().any()) else w


def viewers(problem: Problem) -> Tensor:
    """How many queries may see each key, broadcastable to (…, s)."""
    p, g = problem, problem.geometry
    if p.mask is None:
        return torch.full((g.s,), g.t, device=g.device)
    lead = g.lead if p.mask.lead() else ()
    counts = torch.zeros(*lead, g.s, dtype=torch.long, device=g.device)
    for cut, found in walk(p):
        piece = p.part(cut)
        for part in found:
            for run in part.runs:
                rows, cols = slice(part.start, part.stop), slice(run.start, run.stop)
                n = part.stop - part.start
                allow = None if run.full else piece.allow(rows, cols)
                if allow is None:
                    counts[..., cols][cut if lead else ()] += n
                    continue
                seen = allow.expand(*allow.shape[:-2], n, allow.shape[-1]).sum(-2)
                counts[..., cols][cut if lead else ()] += seen if lead else seen.reshape(-1)
        if not lead:
            break
    return counts
