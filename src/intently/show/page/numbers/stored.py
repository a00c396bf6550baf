"""One attention as a page stores it: rounded queries and keys, and the rest of the formula.

A page stores q and k, not the weights: (t + s)·d numbers instead of t·s. The weights computed from
the rounded numbers form a lazy matrix in float64; `bound` measures their difference from the
model's weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from intently.core.attention import Attention
from intently.core.kernels.problem import Problem
from intently.core.matrix import Dense, LazyMatrix
from intently.core.scores import DOT, Additive
from intently.show.page.numbers.low_biases import drowned, lifted
from intently.show.page.numbers.mask_bias import Laid, Rule, ruled, written

Precision: TypeAlias = Literal["half", "full"]

ROUNDED = {"half": torch.float16, "full": torch.float32}
LARGEST = 2.0**14
"""Half-precision queries and keys are scaled by a power of two to stay below this."""

SAMPLED = 8
"""Rows of each attention that are compared with the model's, and as many with a low bias."""


@dataclass(frozen=True)
class Stored:
    """The numbers of one attention of h heads, and ``matrix``, the weights that follow from them.

    ``q`` (h, t, d) and ``k`` (g, s, d) are rounded; ``energy`` (h, d) belongs to additive scores.
    ``mask`` (1 or h, t, s) is True where a query may attend. ``coarse`` are rows in which a low
    bias costs the model's scores digits that the page keeps.
    """

    matrix: Attention
    q: Tensor
    k: Tensor
    scale: float
    energy: Tensor | None = None
    softcap: float | None = None
    sinks: tuple[float, ...] | None = None
    mask: Tensor | None = None
    bias: Rule | None = None
    coarse: Tensor | None = None


@dataclass(frozen=True)
class StoredWeights:
    """The rounded weights (…, t, s) of a matrix that is not made of q and k."""

    matrix: Dense


def stored(matrix: LazyMatrix, precision: Precision) -> Stored | StoredWeights:
    """Round the queries and keys of a matrix of one item, or its weights where it has none.

    Weights that a recording kept as they are have queries and keys of no width, and a bias.
    ``matrix`` is (t, s), (h, t, s) or (1, h, t, s).
    """
    with torch.no_grad():
        if isinstance(matrix, Attention) and matrix.q.shape[-1]:
            found = _of_problem(matrix.problem.ready(), ROUNDED[precision])
            if found is not None:
                return found
        return StoredWeights(Dense(matrix.dense().cpu().to(ROUNDED[precision]).double()))


def bound(matrix: LazyMatrix, made: Stored | StoredWeights) -> float:
    """Return max |stored − original| over the weights of some rows, ∞ where just one is NaN.

    The rows are evenly spread, plus some in which a low bias makes the scores coarse.
    """
    with torch.no_grad():
        t = matrix.shape[-2]
        rows = torch.linspace(0, t - 1, min(t, SAMPLED)).round().long()
        coarse = made.coarse if isinstance(made, Stored) else None
        if coarse is not None and len(coarse):
            some = torch.linspace(0, len(coarse) - 1, min(len(coarse), SAMPLED)).round().long()
            rows = torch.cat([rows, coarse[some]]).unique()
        theirs = matrix.tile(rows.to(matrix.device)).double().cpu()
        mine = _page_weights(made, rows)
        apart = (mine - theirs).abs().masked_fill(mine.isnan() & theirs.isnan(), 0)
        return float(apart.nan_to_num(math.inf).amax()) if apart.numel() else 0.0


def _page_weights(made: Stored | StoredWeights, rows: Tensor) -> Tensor:
    """Return the weights (…, rows, s) as the page computes them: exp(z − stored lse)."""
    if isinstance(made, StoredWeights):
        return made.matrix.tile(rows)
    lse = made.matrix.lse[..., rows, None]
    z = made.matrix.problem.ready().masked(rows)
    return (z - lse).exp().masked_fill(lse.isneginf(), 0)


def _of_problem(p: Problem, dtype: torch.dtype) -> Stored | None:
    """Return the stored numbers of a problem; None where its scores are of an unknown kind."""
    *lead, t, s = p.geometry.shape
    h = lead[-1] if lead else 1
    operands = _operands(p, h)
    if operands is None:
        return None
    q, k, energy = operands
    q = q.expand(*lead, *q.shape[-2:]).reshape(h, t, -1)
    k = k.reshape(-1, s, k.shape[-1])
    scale = float(p.scale) if not isinstance(p.scale, Tensor) else 1.0
    if isinstance(p.scale, Tensor):  # one for each head
        each = p.scale.double().cpu().expand(*lead, 1, 1).reshape(h, 1, 1)
        q, energy = (q * each, None) if energy is None else (q, energy * each[..., 0])
    mask = written(p)
    bias, coarse = ruled(p, mask), None
    if bias is not None:
        if p.sinks is None:  # beside a sink, such keys have no weight
            scores = partial(_scores, p, q * scale, k, None if energy is None else energy * scale)
            even, coarse = drowned(p, bias, mask, scores)
            q = q.masked_fill(even[..., None], 0.0 if energy is None else LARGEST)  # tanh is 1
        bias = lifted(bias, p.compute_dtype)
    if dtype is torch.float16 and energy is None and p.softcap is None and p.sinks is None:
        k = _centred(k)
    (q, q_size), (k, k_size) = (_rounded(x, dtype, energy is None) for x in (q, k))
    scale = scale / (q_size * k_size)
    energy = None if energy is None else energy.float()
    sinks = None if p.sinks is None else p.sinks.float().cpu().expand(h)
    heads = tuple(lead[:-1])  # of size 1
    wide = (x.double().reshape(*heads, *x.shape) if lead else x[0].double() for x in (q, k))
    follows = p.replaced(
        q=next(wide),
        k=next(wide),
        score=DOT if energy is None else _units(energy, h),
        scale=scale,
        sinks=sinks if lead or sinks is None else sinks[0],
        dropout=0.0,
        bias=None if bias is None else Laid(bias.kind, bias.values),
        geometry=p.geometry._replace(device=torch.device("cpu")),
    )
    listed = None if sinks is None else tuple(sinks.tolist())
    return Stored(Attention(follows), q, k, scale, energy, p.softcap, listed, mask, bias, coarse)


def _operands(p: Problem, h: int) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """Return float64 queries and keys whose dot products are the scores, or those of an energy."""
    score = p.score.replaced(lambda x: x.double().cpu())
    q, k = p.q.double().cpu(), p.k.double().cpu()
    if not isinstance(score, Additive):
        found = score.operands(q, k)
        return None if found is None else (*found, None)
    w, u, energy, bias = score.parts
    k = p.per_query_head(k) @ u.mT
    k = k if bias is None else k + bias[..., None, :]
    return q @ w.mT, k, energy.expand(h, energy.shape[-1])


def _units(energy: Tensor, h: int) -> Additive:
    """Return the score Σ energy · tanh(q + k) of queries and keys that are projected already."""
    same = torch.eye(energy.shape[-1], dtype=torch.float64)
    return Additive(same, same, energy.double() if h > 1 else energy[0].double())


def _scores(p: Problem, q: Tensor, k: Tensor, energy: Tensor | None, rows: Tensor) -> Tensor:
    """Return scores (h, rows, s) before any bias, from scaled operands; a bound where additive."""
    if energy is None:
        z = q[:, rows] @ k.repeat_interleave(len(q) // len(k), 0).mT
    else:
        z = energy.double().abs().sum(-1)[:, None, None].expand(-1, len(rows), k.shape[-2])
    return z if p.softcap is None else p.softcap * torch.tanh(z / p.softcap)


def _centred(k: Tensor) -> Tensor:
    """Subtract the mean of the keys: all scores of a query shift equally, so no weight changes.

    The common part of the keys is often large and would cost the remainder its precision. Source:
    Zhang et al. 2025, "SageAttention", section 4.2.
    """
    mean = k.mean(-2, keepdim=True)
    return k - mean if bool(mean.isfinite().all()) else k


def _rounded(x: Tensor, dtype: torch.dtype, scales: bool) -> tuple[Tensor, float]:
    """Return numbers in a dtype, and the power of two by which they were multiplied to fit it."""
    if dtype is not torch.float16:
        return x.to(dtype), 1.0
    largest = x[x.isfinite()].abs()
    largest = float(largest.amax()) if largest.numel() else 0.0
    if not scales or largest == 0.0:
        most = torch.finfo(dtype).max
        return x.clamp(-most, most).to(dtype), 1.0
    size = 2.0 ** float(torch.tensor(LARGEST / largest, dtype=torch.float64).log2().floor())
    return (x * size).to(dtype), size
