"""One pass over a matrix of any size: its picture, and the statistics at its sides."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from intently.matrix import LazyMatrix
from intently.matrix.patterns.heads import blocks_of_heads, entropies
from intently.show.reading import Pooling, edges, numbers

SIZE = 2**19
"""Weights of one block: they stay in the cache while all three are read from them."""


class Survey(NamedTuple):
    """Cells (rows, columns), the entropy of each query (t,) and what each key receives (s,).

    ``highest`` is the largest single weight.
    """

    cells: np.ndarray
    entropy: np.ndarray
    received: np.ndarray
    highest: float


def survey(matrix: LazyMatrix, rows: int, columns: int, how: Pooling = "mean") -> Survey:
    """Return the picture ``A.pool(rows, columns, how)``, ``A.entropy()`` and ``A.received()``.

    The weights (t, s) are computed once, where the three would compute them three times. Weights
    that are not finite count in the first two only.

    >>> from intently.matrix import Dense
    >>> found = survey(Dense(torch.eye(4)), 2, 2, "sum")
    >>> found.cells.tolist(), found.entropy.tolist(), found.received.tolist()
    ([[2.0, 0.0], [0.0, 2.0]], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0])
    """
    t, s = matrix.shape
    rows, columns = min(rows, t), min(columns, s)
    down, across = edges(0, t, rows), edges(0, s, columns)
    join = np.maximum if how == "max" else np.add
    cells = np.full((rows, columns), -np.inf if how == "max" else 0.0)
    entropy, received = np.zeros(t), np.zeros(s)
    highest = 0.0
    with torch.no_grad():
        for block in blocks_of_heads(matrix, SIZE):
            w, top = block.weights, block.rows.start
            starts, first = _cut(down, block.rows)
            bands = w.split(np.diff([*starts, block.rows.stop - top]).tolist(), -2)
            sums = torch.stack([band.sum(-2) for band in bands])
            highest = max(highest, float(w.nan_to_num(nan=0.0, posinf=0.0).amax()))
            high = torch.stack([band.amax(-2) for band in bands]) if how == "max" else sums
            taken = sums.sum(0)
            if not taken.isfinite().all():
                taken = w.where(w.isfinite(), 0).sum(-2)
            received[block.cols] += numbers(taken)
            columns_of, before = _cut(across, block.cols)
            picture = join.reduceat(numbers(high), columns_of, axis=1)
            at = slice(first, first + len(starts)), slice(before, before + len(columns_of))
            cells[at] = join(cells[at], picture)
            entropy[block.rows] = numbers(entropies(w))
    if how == "mean":
        cells /= np.diff(down)[:, None] * np.diff(across)
    cells[np.isneginf(cells)] = 0
    return Survey(cells, np.maximum(entropy, 0), received, highest)


def _cut(edges: np.ndarray, span: slice) -> tuple[np.ndarray, int]:
    """Return where the cells that meet ``span`` begin within it, and the first of them."""
    first = int(np.searchsorted(edges, span.start, side="right")) - 1
    last = int(np.searchsorted(edges, span.stop, side="left"))
    return np.maximum(edges[first:last], span.start) - span.start, first
