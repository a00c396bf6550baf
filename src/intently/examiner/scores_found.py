"""Take measured weights apart: which score, which scale, what was added, over which axis they sum.

log W = σ · x(q, k) + B − normaliser, where x is a kind of score, B (b, h, t, s) does not depend on
queries and keys, and the normaliser is the same along the axis of the softmax. σ and B are fitted
over several draws of q and k; the residual tells which x it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import torch
from torch import Tensor

from intently.examiner.measuring import Weights
from intently.examiner.precision import EXACT, Precision
from intently.examiner.reading import SPLITS

Axis = Literal["keys", "queries", "heads", "batch", "none"]
AXES: dict[Axis, int] = {"batch": -4, "heads": -3, "queries": -2, "keys": -1}

Score = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Scores:
    """What weights are made of.

    ``seen`` (b, h, t, s) are the keys with weight; ``scale`` (h,); ``added`` (b, h, t, s) is B, up
    to a number a row, NaN where hidden; ``axis`` is that along which weights sum to 1, ``sums``
    what they sum to along keys; ``split`` the order in which q and k are read.
    """

    kind: str
    split: str
    scale: Tensor
    added: Tensor
    seen: Tensor
    axis: Axis
    sums: Tensor
    residual: float
    softcap: float | None = None
    after: bool = False
    extra: float | None = None
    precision: Precision = EXACT


def apart(weights: Weights, kinds: dict[str, Score], softcaps: tuple[float, ...] = ()) -> Scores:
    """The parts of measured weights, by the kind of score with the smallest residual."""
    w = weights.w
    close = weights.precision.close
    seen = (w.abs() > weights.precision.faded * w.abs().amax()).any(0)
    axis = _axis(w, seen, close)
    best: Scores | None = None
    plain = [("", weights.q, weights.k)]
    rounds = [
        (plain, ["dot"], ()),
        (plain, [n for n in kinds if n != "dot"], ()),
        (list(_splits(weights))[1:], ["dot"], ()),
        (plain, ["dot"], softcaps),
        (plain, [n for n in kinds if n != "dot"], softcaps),
    ]
    for splits, names, caps in rounds:
        for (split, q, k), name in product(splits, names):
            score = kinds[name]
            x = score(q, k)
            for cap in caps or (None,):
                found = _fitted(w, x, seen, axis, cap)
                scale, added, residual = found
                if best is None or residual < best.residual / 10:
                    best = Scores(
                        *(name, split, scale, added, seen, axis, w.sum(-1), residual, cap),
                        precision=weights.precision,
                    )
                if best.residual < close:
                    return _normalised(best, w, score(q, k))
    assert best is not None
    return best


def _splits(weights: Weights) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Queries and keys as they are read plainly, then as if heads were split by a reshape."""
    q, k = weights.q, weights.k
    yield "", q, k
    for order in SPLITS[1:]:
        yield order, _as_if(q, order), _as_if(k, order)


def _as_if(x: Tensor, order: str) -> Tensor:
    """Heads (n, b, h, t, d) split anew from (b, t, h·d) in memory, read in another order."""
    n, b, h, t, d = x.shape
    known = {"b": b, "h": h, "t": t, "d": d}
    flat = x.permute(0, 1, 3, 2, 4).reshape(n, *(known[c] for c in order))
    return flat.permute(0, *(1 + order.index(c) for c in "bhtd"))


def _axis(w: Tensor, seen: Tensor, close: float) -> Axis:
    """The axis along which weights sum to 1, or to nothing where nothing is seen."""
    for name in ("keys", "queries", "heads", "batch"):
        axis = AXES[name]
        if w.shape[axis] == 1 and name in ("heads", "batch"):
            continue
        sums = w.sum(axis)
        some = seen.any(axis).expand_as(sums)
        if bool(((sums - 1).abs()[some] < close).all()):
            return name
    return "none"


def _fitted(
    w: Tensor, x: Tensor, seen: Tensor, axis: Axis, cap: float | None
) -> tuple[Tensor, Tensor, float]:
    """Scale (h,), what was added (b, h, t, s), and the relative residual, by regression."""
    along = AXES.get(axis, -1)
    y = w.clamp(min=1e-300).log()
    if cap is not None:
        return _fitted_capped(y, x, seen, along, cap)
    y, x = _centred(y, seen, along), _centred(x, seen, along)
    dy, dx = y - y.mean(0), x - x.mean(0)
    scale = (dx * dy).sum((0, 1, 3, 4)) / (dx * dx).sum((0, 1, 3, 4)).clamp(min=1e-30)
    off = dy - scale[:, None, None] * dx
    residual = float(off.norm() / dy.norm().clamp(min=1e-30))
    added = (y - scale[:, None, None] * x).mean(0)
    return scale, added.masked_fill(~seen, torch.nan), residual


def _fitted_capped(
    y: Tensor, x: Tensor, seen: Tensor, along: int, cap: float
) -> tuple[Tensor, Tensor, float]:
    """The same with cap · tanh(σ x / cap): σ by a search, as it acts within tanh."""
    y = _centred(y, seen, along)
    dy = y - y.mean(0)

    def off(scale: float) -> tuple[float, Tensor]:
        z = _centred(cap * torch.tanh(scale * x / cap), seen, along)
        dz = z - z.mean(0)
        return float((dy - dz).norm() / dy.norm().clamp(min=1e-30)), (y - z).mean(0)

    low, high = 1e-3, 10.0
    for _ in range(80):  # golden section on a logarithmic axis
        a, b = low * (high / low) ** 0.382, low * (high / low) ** 0.618
        low, high = (low, b) if off(a)[0] < off(b)[0] else (a, high)
    scale = (low * high) ** 0.5
    residual, added = off(scale)
    return (
        torch.full((x.shape[2],), scale, dtype=x.dtype),
        added.masked_fill(~seen, torch.nan),
        residual,
    )


def _centred(x: Tensor, seen: Tensor, along: int) -> Tensor:
    """X minus its mean over what is seen along an axis; 0 where hidden."""
    x = x.masked_fill(~seen, 0.0)
    n = seen.sum(along, keepdim=True).clamp(min=1)
    return (x - x.sum(along, keepdim=True) / n).masked_fill(~seen, 0.0)


def _normalised(found: Scores, w: Tensor, x: Tensor) -> Scores:
    """Where weights do not sum to 1: whether hidden keys took part, or something else did."""
    if found.axis != "none":
        return found
    z = found.scale[:, None, None] * x + found.added.nan_to_num(0.0)
    inside = z.masked_fill(~found.seen, -torch.inf).logsumexp(-1)
    missing = (w.clamp(min=1e-300).log() - z).masked_fill(~found.seen, torch.nan).nanmean(-1)
    whole = z.logsumexp(-1)  # what was added is not known where it is hidden: taken as nothing
    some = found.seen.any(-1)
    spread = (missing + whole)[:, some]
    little = 10 * found.precision.added
    if bool((spread - spread[0]).abs().max() < little):
        return replace(found, after=True)
    taken = (torch.exp(-missing) - torch.exp(inside))[:, some]
    if bool((taken - taken[0]).abs().max() < little * taken.abs().max().clamp(min=1e-6)):
        return replace(found, extra=float(taken.mean()))
    return found
