"""The keys that rows saw, as a mask: a window with padding and global keys, or tiles."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import pad

from intently.core.biases import Bias, TiledBias
from intently.core.masks import Geometry, Mask, allowed
from intently.core.masks.by_position import Tiled
from intently.observe.sources.origins import NOWHERE
from intently.observe.watching.mask_inference import Seen


def mask_of(
    laid: Sequence[tuple[Tensor, Tensor]], sizes: tuple[int, ...]
) -> tuple[Mask | None, Bias | None]:
    """The mask of rows (l, r) that see the keys (l, r, m), and a bias where keys come repeatedly.

    A key that comes n times in a row counts n-fold: log n is added to its score.
    """
    *lead, t, s = sizes
    rows, keys = [x for x, _ in laid], [x for _, x in laid]
    shape = [*lead]
    for axis in reversed(range(len(lead))):  # a rule that is the same for all heads is kept once
        whole = [x.view(*shape, *x.shape[1:]) for x in (*rows, *keys)]
        if all(bool((x == x.narrow(axis, 0, 1)).all()) for x in whole):
            whole = [x.narrow(axis, 0, 1) for x in whole]
            shape[axis] = 1
        whole = [x.flatten(0, len(lead) - 1) for x in whole]
        rows, keys = whole[: len(rows)], whole[len(rows) :]
    codes = []
    for at, some in zip(rows, keys):
        lead_at, row, column = (some != NOWHERE).nonzero(as_tuple=True)
        codes.append((lead_at * t + at[lead_at, row]) * s + some[lead_at, row, column])
    code, times = torch.cat(codes).unique(return_counts=True)
    kept, bias = (*shape, t, s), None
    if bool((times > 1).any()):
        bias = TiledBias(*_few(*tiled(code, times.float().log(), kept, 0.0)))
    g = Geometry(tuple(lead), t, s, code.device)
    found = _as_value(code, kept, g)
    if found is not None:
        return found[0], bias
    return Tiled(*_few(*tiled(code, torch.ones_like(code, dtype=torch.bool), kept, False))), bias


def tiled(
    code: Tensor, value: Tensor, sizes: tuple[int, ...], nothing: float
) -> tuple[Tensor, Tensor]:
    """Entries (l · t + i) · s + j and their values as tiles; ``nothing`` stands everywhere else."""
    *lead, t, s = sizes
    side = 64 if s > 512 else 16
    r, c = -(-t // side), -(-s // side)
    j, i = code % s, code // s % t
    which = (code // (t * s) * r + i // side) * c + j // side
    used, at = which.unique(return_inverse=True)
    tiles = value.new_full((len(used) + 1, side, side), nothing)
    tiles[at + 1, i % side, j % side] = value
    index = torch.zeros(torch.Size(lead).numel() * r * c, dtype=torch.int32, device=code.device)
    index[used] = torch.arange(1, len(used) + 1, dtype=torch.int32, device=code.device)
    return index.view(*lead, r, c), tiles


def _few(index: Tensor, tiles: Tensor) -> tuple[Tensor, Tensor]:
    """The same with equal tiles kept once."""
    few, same = tiles.flatten(1).unique(dim=0, return_inverse=True)
    return same.int()[index.long()], few.view(-1, *tiles.shape[1:])


def _as_value(code: Tensor, sizes: tuple[int, ...], g: Geometry) -> tuple[Mask | None] | None:
    """The mask as a value, None if there is none: all keys, or a window of those that are seen.

    Beside the window, there may be keys that every query sees, and queries that see every key.
    """
    *lead, t, s = sizes
    n = torch.Size(lead).numel()
    if len(code) == n * t * s:
        return (None,)
    if t != s or n != (lead[0] if lead else 1):
        return None
    text, i, j = code // (t * s), code // s % t, code % s
    per_row = (text * t + i).bincount(minlength=n * t).view(n, t)
    per_key = (text * s + j).bincount(minlength=n * s).view(n, s)
    seen = per_key > 0
    keys = (per_key == (per_row > 0).sum(-1, keepdim=True)) & seen
    queries = (per_row == seen.sum(-1, keepdim=True)) & (per_row > 0)
    nobody = torch.zeros_like(keys)
    for wide, tall in product((nobody, keys), (nobody, queries)):
        near = ~(wide[text, j] | tall[text, i])
        if not bool(near.any()):
            continue
        apart = (j - i)[near]
        before, after = max(0, -int(apart.min())), max(0, int(apart.max()))
        sums = pad((seen & ~wide).cumsum(-1), (1, 0))
        steps = torch.arange(t, device=code.device)
        first, last = (steps - before).clamp_min(0), (steps + after + 1).clamp_max(s)
        expected = sums[:, last] - sums[:, first] + wide.sum(-1, keepdim=True)
        if torch.equal(torch.where(tall, seen.sum(-1, keepdim=True), expected), per_row):
            some = None if bool(seen.all()) else seen
            mask = Seen(0, before, None if after >= s - 1 else after, some).mask(g)
            if mask is not None and bool(wide.any()):
                mask = mask | allowed(_by_text(wide.unsqueeze(-2), g))
            if mask is not None and bool(tall.any()):
                rows, rest = (
                    allowed(_by_text(tall.unsqueeze(-1), g)),
                    Seen(0, None, None, some).mask(g),
                )
                mask = mask | (rows if rest is None else rows & rest)
            return (mask,)
    return None


def _by_text(rule: Tensor, g: Geometry) -> Tensor:
    """A rule (n, t, s) for the matrix ``g``, whose first axis are texts."""
    return rule.view(len(rule), *(1,) * (len(g.lead) - 1), *rule.shape[1:]) if g.lead else rule[0]
