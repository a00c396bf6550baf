"""Tiling of a large matrix: which heads, rows and columns make one tile.

Blocks that the mask leaves empty are never visited; full blocks are visited without the mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from intently.core.kernels.problem import Problem
from intently.core.masks import EMPTY, FULL, PARTIAL

TILE = 2**19
"""Weights in one tile: with its neighbours it stays in the cache of two cores."""

WIDE = 1024
"""Columns of a tile at most."""

GRAIN = 128
"""The finest rows and columns at which the mask is asked for its empty and full blocks."""

VISIT = 2**15
"""The overhead of visiting a tile, measured in weights."""


class ColumnRun(NamedTuple):
    """Columns start … stop − 1 of a block of rows; ``full`` where the mask allows all of them."""

    start: int
    stop: int
    full: bool


class RowBlock(NamedTuple):
    """Rows start … stop − 1 and the runs of columns that they may attend."""

    start: int
    stop: int
    runs: tuple[ColumnRun, ...]


class MaskBlocks(NamedTuple):
    """States of the mask, (t / grain, s / grain), as `Mask.blocks` gives them."""

    grain: int
    states: np.ndarray

    @property
    def visited(self) -> float:
        """The share of blocks that are not empty."""
        return float((self.states != EMPTY).mean()) if self.states.size else 1.0


def blocks(problem: Problem) -> MaskBlocks | None:
    """Return the block structure of the mask, empty and full blocks; None without a mask."""
    if problem.mask is None:
        return None
    g = problem.geometry
    grain = max(GRAIN, 2 ** math.ceil(math.log2(max(g.t, g.s, 1) / 2048)))
    return MaskBlocks(grain, problem.mask.blocks(g, grain, grain).cpu().numpy())


def walk(
    problem: Problem, tile: int = TILE, wide: int = WIDE
) -> Iterator[tuple[tuple[slice, ...], list[RowBlock]]]:
    """Cut the leading axes into pieces, each with the rows and columns to visit.

    A tile has about ``tile`` weights and at most ``wide`` columns.
    """
    found = blocks(problem)
    shared = problem.mask is None or not problem.mask.lead()
    rows: list[RowBlock] | None = None
    for cut in _pieces(problem, found, tile, wide):
        if rows is None or not shared:
            rows = _layout(problem.part(cut), found if shared else None, tile, wide)
        yield cut, rows


def _pieces(
    problem: Problem, found: MaskBlocks | None, tile: int, wide: int
) -> Iterator[tuple[slice, ...]]:
    """Cut the leading axes so that a tile of one piece holds about ``tile`` weights."""
    g = problem.geometry
    width = min(g.s if found is None else g.s * found.visited, wide)
    room = max(1, round(tile / max(1, min(g.t, 4 * GRAIN if found is None else GRAIN) * width)))
    steps: list[int] = []
    for axis, size in enumerate(reversed(g.lead)):
        step = -(-size // -(-size // room)) if size else 1
        if axis == 0 and problem.groups > 1:
            step = _whole_groups(step, problem.groups)
        room = room // step if step == size else 1
        steps.insert(0, step)
    for start in product(*(range(0, size, step) for size, step in zip(g.lead, steps))):
        yield tuple(slice(i, min(i + step, n)) for i, step, n in zip(start, steps, g.lead))


def _whole_groups(step: int, n: int) -> int:
    if step >= n:
        return step - step % n
    return next(k for k in range(step, 0, -1) if n % k == 0)


def _layout(problem: Problem, found: MaskBlocks | None, tile: int, wide: int) -> list[RowBlock]:
    """Return the blocks of rows of a piece, each with the columns worth visiting."""
    g = problem.geometry
    if not g.s:
        return [RowBlock(0, g.t, ())]
    heads = max(1, math.prod(g.lead))
    found = found or blocks(problem)
    if found is None:
        tall = min(4 * GRAIN, max(GRAIN, tile // (heads * min(g.s, wide))))
        runs = tuple(ColumnRun(c, min(c + wide, g.s), True) for c in range(0, g.s, wide))
        return [RowBlock(r, min(r + tall, g.t), runs) for r in range(0, g.t, tall)]
    best, least = [], math.inf
    for tall in (1, 2, 4):
        columns = max(1, tile // (heads * tall * found.grain)) if wide < g.s else g.s
        rows = _rows(found, tall, min(wide, columns), g.t, g.s)
        visits = [(r.stop - r.start) * (c.stop - c.start) for r in rows for c in r.runs]
        cost = heads * sum(visits) + VISIT * len(visits)
        if cost < least:
            best, least = rows, cost
    return best


def _rows(found: MaskBlocks, tall: int, columns: int, t: int, s: int) -> list[RowBlock]:
    """Join ``tall`` rows of blocks and cut each into runs of at most ``columns`` columns."""
    grain, states = found
    if tall > 1:
        padded = np.pad(states, ((0, -len(states) % tall), (0, 0)), "edge")
        padded = padded.reshape(-1, tall, states.shape[1])
        low = padded.min(1)
        states = np.where(low == padded.max(1), low, PARTIAL)
    wide = max(1, columns // grain)
    return [
        RowBlock(i * tall * grain, min((i + 1) * tall * grain, t), _runs(row, grain, wide, s))
        for i, row in enumerate(states)
    ]


def _runs(row: np.ndarray, grain: int, wide: int, s: int) -> tuple[ColumnRun, ...]:
    """Neighbouring blocks of one state, joined into runs of at most ``wide`` blocks."""
    ends = [*np.flatnonzero(row[1:] != row[:-1]) + 1, len(row)]
    runs: list[ColumnRun] = []
    start = 0
    for end in map(int, ends):
        if end > start and row[start] != EMPTY:
            full = bool(row[start] == FULL)
            runs += [
                ColumnRun(c * grain, min(min(c + wide, end) * grain, s), full)
                for c in range(start, end, wide)
            ]
        start = end
    return tuple(runs)


class WeightBlock(NamedTuple):
    """Weights (…, rows, cols) of a part of a matrix; its other columns in these rows are 0."""

    lead: tuple[slice, ...]
    rows: slice
    cols: slice
    weights: Tensor


def weight_blocks(problem: Problem, size: int, together: bool = False) -> Iterator[WeightBlock]:
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
                yield WeightBlock(cut, rows, cols, _weights(piece, rows, cols, part))


def _weights(p: Problem, rows: slice, cols: slice, part: RowBlock) -> Tensor:
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
