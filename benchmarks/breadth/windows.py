"""Attention in windows that overlap, as one matrix over all places.

The values tell where a window lies: what it has in common with the next one is the same, bit for
bit. Nothing else is trusted, so that a row at a wrong place is no row of that matrix.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

PADDING = -1


def laid_out(weights: Tensor, values: Tensor) -> Tensor | None:
    """Rows (n · r, s) of the ``weights`` (n, r, c) of r queries each that attend to windows.

    A window (c, d) of ``values`` (n, c, d) begins r places after the one before. Values that are
    zero are padding: it is left out at both ends unless it is attended to. None if these are no
    such windows.
    """
    if weights.dim() < 3 or weights.shape[:-2] != values.shape[:-2]:
        return None
    weights, values = weights.flatten(0, -3), values.flatten(0, -3)
    n, r, c = weights.shape
    if values.shape[1] != c or not values.numel() or n < 2 or not 0 < r < c:
        return None
    number = values.flatten(0, 1).unique(dim=0, return_inverse=True)[1].view(n, c)
    number[(values == 0).all(-1)] = PADDING
    turn = _turns(number, r)
    if turn is None:
        return None
    width = max(turn) * r + c
    made, kept = weights.new_zeros(n, r, width), torch.zeros(width, dtype=torch.bool)
    blind = (weights - 1 / c).abs().amax(-1, keepdim=True) < 1e-6
    needed = (number != PADDING) | ((weights != 0) & ~blind).any(1)
    for i, k in enumerate(turn):
        made[i, :, k * r : k * r + c] = weights[i]
        kept[k * r : k * r + c] |= needed[i]
    places = kept.nonzero().flatten().tolist() or [0]
    return made[..., places[0] : places[-1] + 1].flatten(0, 1)


def _turns(number: Tensor, r: int) -> list[int] | None:
    """Which window of its row of windows each is, from 0; None if they are in no such rows."""
    windows = [tuple(x) for x in number.tolist()]
    empty = (PADDING,) * (number.shape[1] - r)
    after: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, window in enumerate(windows):
        after[window[:-r]].append(i)
    ends = {window[r:] for window in windows} - {empty}
    now = [i for i, window in enumerate(windows) if window[:-r] not in ends]
    turn, step = dict.fromkeys(now, 0), 0
    while now:
        step += 1
        shared = {windows[i][r:] for i in now} - {empty}
        now = [j for end in shared for j in after.get(end, ()) if j not in turn]
        turn.update(dict.fromkeys(now, step))
    counts = [list(turn.values()).count(k) for k in range(step)]
    if len(turn) < len(windows) or len(counts) < 2 or len(set(counts)) > 1:
        return None
    return [turn[i] for i in range(len(windows))]
