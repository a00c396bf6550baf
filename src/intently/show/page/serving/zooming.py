"""One head at any zoom within a tenth of a second: exact where that is quick, else approximate.

A window of few weights is computed afresh. Larger windows are pooled from sums and maxima over
blocks of B × B weights, which one pass over the head collects. Until that pass is done, they are
drawn from evenly spread queries, each of which is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from intently.attention_matrix import Attention
from intently.kernels.walk import blocks
from intently.masks import EMPTY, FULL, PARTIAL
from intently.matrix.patterns.heads import entropies
from intently.show.page.serving.cells import (
    How,
    across_columns,
    between,
    cell_of,
    highest,
    in_blocks,
)
from intently.show.reading import edges

QUICK = 2**23
"""Most weights that are computed for one answer."""

NORMALIZED = 2**22
"""The same where the rows have to be normalised first."""

FINEST = 4096
"""Most blocks of the cached sums along the longer axis."""

STRIP = 128
"""Rows that are computed at once."""

SOME = 16
"""Scattered rows that are computed at once."""


class Zoomed(NamedTuple):
    """Weights ``picture`` (h, w), and their precision: "" if exact."""

    picture: Tensor
    nearness: str = ""


class Kept(NamedTuple):
    """The results of one pass: lse (n, t), entropy (t,), received (s,), sums over blocks, peaks.

    Short heads have no blocks. Peaks are the largest weights of blocks.
    """

    lse: Tensor
    entropy: Tensor
    received: Tensor
    cells: Tensor | None
    peaks: Tensor | None


class ZoomedHead:
    """The weights (t, s) of one head, or the mean of n heads (n, t, s), asked for any part."""

    def __init__(self, matrix: Attention) -> None:
        *lead, self.t, self.s = matrix.shape
        self.n = math.prod(lead)
        self.problem = matrix.problem.ready()
        self.side = 2 ** max(0, math.ceil(math.log2(max(self.t, self.s, 1) / FINEST)))
        self.done = 0
        self._matrix = matrix
        self._states = blocks(self.problem)
        dtype = self.problem.compute_dtype
        cells = peaks = None
        if self.side > 1 or self.n * self.t * self.s > QUICK:
            cells = torch.zeros(-(-self.t // self.side), -(-self.s // self.side))
            peaks = cells if self.side == 1 else torch.zeros_like(cells)
        self.kept = Kept(
            torch.zeros(self.n, self.t, dtype=dtype),
            torch.zeros(self.t),
            torch.zeros(self.s, dtype=torch.float64),
            cells,
            peaks,
        )

    @property
    def settled(self) -> bool:
        """Whether the pass is done, so that every answer is quick."""
        return self.done == self.t

    @property
    def bytes(self) -> int:
        """The memory of its results."""
        return sum({id(x): x.nbytes for x in self.kept if x is not None}.values())

    def steps(self) -> Iterator[None]:
        """The one pass over all weights, in steps of some milliseconds."""
        lse, entropy, received, cells, peaks = self.kept
        side = self.side
        while self.done < self.t:
            rows = slice(self.done, min(self.done + STRIP, self.t))
            with torch.no_grad():
                z, start = self._logits(rows, 0, self.s)
                shares, total = _shares(z)
                lse[:, rows] = self._with_sinks(total)
                w = _mean(shares, total, lse[:, rows])
                entropy[rows] = entropies(w).float() if w.shape[1] else 0.0
                received[start : start + w.shape[1]] += w.sum(0)
                if cells is not None:
                    part = in_blocks(w, start % side, side)
                    first = start // side
                    down = slice(rows.start // side, -(-rows.stop // side))
                    at = down, slice(first, first + part.shape[2])
                    cells[at] += part.sum((1, 3))
                    if peaks is not None and peaks is not cells:
                        peaks[at] = torch.maximum(peaks[at], part.amax((1, 3)))
            self.done = rows.stop
            yield

    # --- exact weights --------------------------------------------------------------------------

    def tile(self, r0: int, r1: int, c0: int, c1: int) -> Tensor:
        """The weights of queries r0 … r1 − 1 on keys c0 … c1 − 1."""
        self._matrix._check_fresh()
        found = torch.zeros(r1 - r0, c1 - c0)
        with torch.no_grad():
            for rows in _strips(r0, r1):
                w, start = self._window(rows, c0, c1)
                found[rows.start - r0 : rows.stop - r0, start - c0 : start - c0 + w.shape[1]] = w
        return found

    def pooled(
        self,
        r0: int,
        r1: int,
        c0: int,
        c1: int,
        h: int,
        w: int,
        how: How = "mean",
        at_once: int = 1,
    ) -> Zoomed:
        """Weights of h × w cells of a window; cell i begins at row ⌈i m / h⌉ of its m rows.

        A cell holds the mean of its weights, or their maximum. ``at_once`` is how many such answers
        share the time of one.
        """
        share = self.n * at_once
        self._matrix._check_fresh()
        down, across = edges(r0, r1, h), edges(c0, c1, w)
        with torch.no_grad():
            if r1 <= self.done and (r1 - r0) * (c1 - c0) <= QUICK // share:
                return Zoomed(self._exact(down, across, how))
            if self.settled and self.kept.cells is not None:
                return self._from_cells(down, across, how)
            if (r1 - r0) * self.s <= NORMALIZED // share:
                return Zoomed(self._exact(down, across, how))
            return self._sampled(down, across, NORMALIZED // share, how)

    def masked(self, r0: int, r1: int, c0: int, c1: int, h: int, w: int) -> Tensor:
        """Which of h × w cells of a window are masked completely, as booleans.

        Where the mask has no closed form and evaluating it would take long, a cell counts as seen
        if its block may be.
        """
        down, across = edges(r0, r1, h), edges(c0, c1, w)
        known = self._seen(down, across)
        if known is not None:
            return ~torch.from_numpy(known)
        shown = np.zeros((len(down) - 1, c1 - c0), bool)
        left = QUICK
        for rows in _strips(r0, r1):
            at = cell_of(down, rows.start, rows.stop)
            for start, stop, state in self._runs(rows, c0, c1):
                cols = slice(start - c0, stop - c0)
                count = (rows.stop - rows.start) * (stop - start)
                if state == PARTIAL and count <= left:
                    left -= count
                    cuts = np.flatnonzero(np.diff(at, prepend=-1))
                    seen = self._allowed(rows, slice(start, stop))
                    shown[at[cuts], cols] |= np.logical_or.reduceat(seen, cuts, axis=0)
                elif state != EMPTY:
                    shown[at[0] : at[-1] + 1, cols] = True
        return ~torch.from_numpy(np.logical_or.reduceat(shown, across[:-1] - c0, axis=1))

    def _seen(self, down: np.ndarray, across: np.ndarray) -> np.ndarray | None:
        """Which cells hold a visible pair, from the closed form of each key's queries."""
        mask = self.problem.mask
        runs = None if mask is None else mask.queries(self.problem.geometry)
        if runs is None or any(run.step > 1 for run in runs):
            return None
        keys = slice(int(across[0]), int(across[-1]))
        begun = np.zeros((len(down), len(across) - 1), np.int64)
        for run in runs:
            first, last = (
                x[..., keys].reshape(-1, keys.stop - keys.start).numpy()
                for x in torch.broadcast_tensors(run.first, run.last)
            )
            first, last = np.maximum(first, down[0]), np.minimum(last, down[-1] - 1)
            some = first <= last
            column = np.broadcast_to(cell_of(across, keys.start, keys.stop), some.shape)[some]
            for rows, sign in ((first[some], 1), (last[some], -1)):
                cell = np.searchsorted(down, rows, "right") - (sign == 1)
                np.add.at(begun, (cell, column), sign)
        return begun[:-1].cumsum(0) > 0

    def _allowed(self, rows: slice, cols: slice) -> np.ndarray:
        """Whether a query may attend to a key in at least one head."""
        allow = self.problem.allow(rows, cols)
        assert allow is not None
        seen = allow.reshape(-1, *allow.shape[-2:]).any(0)
        return seen.expand(rows.stop - rows.start, cols.stop - cols.start).numpy()

    # --- how ------------------------------------------------------------------------------------

    def _runs(self, rows: slice, c0: int, c1: int) -> list[tuple[int, int, int]]:
        """Neighbouring columns of one state in some rows: (start, stop, state), from c0 to c1."""
        if self._states is None:
            return [(c0, c1, FULL)]
        grain, states = self._states
        part = states[rows.start // grain : -(-rows.stop // grain), c0 // grain : -(-c1 // grain)]
        low, high = part.min(0), part.max(0)
        joined = np.where(low == high, low, PARTIAL)
        ends = [0, *(np.flatnonzero(np.diff(joined)) + 1).tolist(), len(joined)]
        first = c0 // grain
        return [
            (max(c0, (first + start) * grain), min(c1, (first + end) * grain), int(joined[start]))
            for start, end in pairwise(ends)
        ]

    def _logits(self, rows: slice | Tensor, c0: int, c1: int) -> tuple[Tensor, int]:
        """Masked logits of the columns from c0 to c1 that these rows may attend; the first one."""
        count = len(rows) if isinstance(rows, Tensor) else rows.stop - rows.start
        around = slice(int(rows[0]), int(rows[-1]) + 1) if isinstance(rows, Tensor) else rows
        runs = self._runs(around, c0, c1)
        seen = [run for run in runs if run[2] != EMPTY]
        if not seen:
            return self.kept.lse.new_zeros(self.n, count, 0), c0
        first, last = seen[0][0], seen[-1][1]
        z = self.problem.logits(rows, slice(first, last))
        for start, stop, state in runs:
            if state != FULL and first <= start < last:
                part = z[..., start - first : stop - first]
                self.problem.hide(part, rows, slice(start, stop), -math.inf)
        return z.reshape(-1, *z.shape[-2:]), first

    def _with_sinks(self, total: Tensor) -> Tensor:
        """log(Σ exp z + exp sink), given log Σ exp z (n, rows)."""
        sinks = self.problem.sinks
        if sinks is None:
            return total
        return torch.logaddexp(total, sinks.to(total.dtype).reshape(-1, 1).expand_as(total))

    def _window(self, rows: slice | Tensor, c0: int, c1: int) -> tuple[Tensor, int]:
        """Return the weights of some rows on keys c0 … c1 − 1 they may attend; the first key."""
        if isinstance(rows, slice) and rows.stop <= self.done:
            z, first = self._logits(rows, c0, c1)
            return _mean(*_shares(z), self.kept.lse[:, rows]), first
        z, first = self._logits(rows, 0, self.s)
        shares, total = _shares(z)
        start, stop = max(first, c0), max(first, c0, min(first + z.shape[-1], c1))
        part = shares[..., start - first : stop - first]
        return _mean(part, total, self._with_sinks(total)), start

    def _exact(self, down: np.ndarray, across: np.ndarray, how: How) -> Tensor:
        """Compute cells from the weights themselves."""
        c0, c1 = int(across[0]), int(across[-1])
        found = torch.zeros(len(down) - 1, c1 - c0)
        for rows in _strips(int(down[0]), int(down[-1])):
            w, start = self._window(rows, c0, c1)
            at = cell_of(down, rows.start, rows.stop)
            part = found[:, start - c0 : start - c0 + w.shape[1]]
            if how == "max":
                part = part[at[0] : at[-1] + 1].numpy()
                cuts = np.flatnonzero(np.diff(at, prepend=-1))
                np.maximum(part, np.maximum.reduceat(w.float().numpy(), cuts), out=part)
            else:
                part.index_add_(0, torch.from_numpy(at), w.float())
        return across_columns(found, across - c0, np.diff(down), how)

    def _sampled(self, down: np.ndarray, across: np.ndarray, room: int, how: How) -> Zoomed:
        """Compute cells from one query of each row of cells, or of every few rows."""
        count = min(len(down) - 1, max(1, room // self.s))
        coarse = edges(int(down[0]), int(down[-1]), count)
        middle = (coarse[:-1] + coarse[1:] - 1) // 2
        c0, c1 = int(across[0]), int(across[-1])
        found = torch.zeros(count, c1 - c0)
        for at in range(0, count, SOME):
            w, start = self._window(torch.from_numpy(middle[at : at + SOME]), c0, c1)
            found[at : at + SOME, start - c0 : start - c0 + w.shape[1]] = w
        picture = across_columns(found, across - c0, np.ones(count), how)
        of = np.searchsorted(coarse, down[:-1], "right") - 1
        every = max(1, round((down[-1] - down[0]) / count))
        return Zoomed(picture[of], f"shows one query in {every:,} until all are read")

    def _from_cells(self, down: np.ndarray, across: np.ndarray, how: How) -> Zoomed:
        """Compute cells from the cached sums, a cut block by its share, or from the peaks."""
        cells, peaks, side = self.kept.cells, self.kept.peaks, self.side
        assert cells is not None and peaks is not None
        cut = any((at % side > 0)[at < n].any() for at, n in ((down, self.t), (across, self.s)))
        if how == "max":
            picture = highest(highest(peaks, down, side).mT, across, side).mT
            said = f"takes the largest weight of whole blocks of {side} × {side}"
            return Zoomed(picture, said if cut else "")
        first = int(across[0]) // side
        part = cells[:, first : int(across[-1]) // side + 1]
        rows = between(part, down, side, self.t)
        sums = between(rows.mT, across - first * side, side, self.s - first * side).mT
        sizes = np.diff(down)[:, None] * np.diff(across)
        nearness = f"takes blocks of {side} × {side} weights by their share" if cut else ""
        return Zoomed(sums / torch.from_numpy(sizes), nearness)


def _strips(start: int, stop: int) -> Iterator[slice]:
    """Yield rows in strips, cut at the blocks of the mask."""
    while start < stop:
        end = min(stop, (start // STRIP + 1) * STRIP)
        yield slice(start, end)
        start = end


def _shares(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax of logits (n, rows, columns), and log Σ exp z (n, rows).

    The latter follows from the largest logit and its share, as softmax is fastest. Rows of −∞ have
    no shares.
    """
    if not z.shape[-1]:
        return z, z.new_full(z.shape[:-1], -math.inf)
    most = z.amax(-1)
    empty = most.isneginf()
    w = torch.softmax(z, -1)
    if bool(empty.any()):
        w.masked_fill_(empty[..., None], 0)
    return w, (most - w.amax(-1).log()).masked_fill(empty, -math.inf)


def _mean(shares: Tensor, total: Tensor, lse: Tensor) -> Tensor:
    """Return the mean over heads of shares, rescaled from ``total`` (n, rows) to ``lse``."""
    factor = (total - lse).nan_to_num(-math.inf, neginf=-math.inf).exp()
    if bool((factor != 1).any()):
        shares = shares * factor[..., None]
    return shares[0] if len(shares) == 1 else shares.mean(0)
