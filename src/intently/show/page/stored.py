"""One attention as a page stores it: rounded queries and keys, and all that makes them weights.

A page holds q and k, not the weights: (t + s)·d numbers for t·s. The weights that follow from the
rounded numbers are told here as a lazy matrix in float64; how far they are from the model's is
measured (`bound`), not promised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from intently.attention import Attention
from intently.kernels.problem import Problem
from intently.matrix import Dense, LazyMatrix
from intently.scores import DOT, Additive
from intently.show.page.rules import Laid, Rule, ruled, written

Precision: TypeAlias = Literal["half", "full"]

ROUNDED = {"half": torch.float16, "full": torch.float32}
LARGEST = 2.0**14
"""In half, queries and keys are scaled by a power of two to stay within this: none overflows."""

UNHEARD = -1e30
"""A bias below this takes every score with it."""

SAMPLED = 8
"""Rows of each attention that are compared with the model's."""


@dataclass(frozen=True)
class Stored:
    """The numbers of one attention of h heads, and ``matrix``, the weights that follow from them.

    ``q`` (h, t, d) and ``k`` (g, s, d) are rounded; ``energy`` (h, d) is there for additive scores.
    ``mask`` (1 or h, t, s) says True where a query may attend.
    """

    matrix: LazyMatrix
    q: Tensor
    k: Tensor
    scale: float
    energy: Tensor | None = None
    softcap: float | None = None
    sinks: tuple[float, ...] | None = None
    mask: Tensor | None = None
    bias: Rule | None = None


@dataclass(frozen=True)
class StoredWeights:
    """The rounded weights (…, t, s) themselves, of a matrix that is not made of q and k."""

    matrix: Dense


def stored(matrix: LazyMatrix, precision: Precision) -> Stored | StoredWeights:
    """Round the queries and keys of a matrix of one item, or its weights where it has none.

    ``matrix`` is (t, s), (h, t, s) or (1, h, t, s).
    """
    with torch.no_grad():
        if isinstance(matrix, Attention):
            found = _of_problem(matrix.problem.ready(), ROUNDED[precision])
            if found is not None:
                return found
        return StoredWeights(Dense(matrix.dense().cpu().to(ROUNDED[precision]).double()))


def bound(matrix: LazyMatrix, made: Stored | StoredWeights) -> float:
    """Return max |stored − original| over the weights of some rows, evenly spread."""
    with torch.no_grad():
        t = matrix.shape[-2]
        rows = torch.linspace(0, t - 1, min(t, SAMPLED)).round().long()
        theirs = matrix.tile(rows.to(matrix.device)).double().cpu()
        apart = (made.matrix.tile(rows) - theirs).abs().nan_to_num(0)
        return float(apart.amax()) if apart.numel() else 0.0


def _of_problem(p: Problem, dtype: torch.dtype) -> Stored | None:
    """The stored numbers of a problem; None where its scores are of an unknown kind."""
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
    if dtype is torch.float16 and energy is None and p.softcap is None and p.sinks is None:
        k = _centred(k)
    (q, q_size), (k, k_size) = (_rounded(x, dtype, energy is None) for x in (q, k))
    scale = scale / (q_size * k_size)
    energy = None if energy is None else energy.float()
    sinks = None if p.sinks is None else p.sinks.float().cpu().expand(h)
    mask = written(p)
    bias = ruled(p, mask)
    if bias is not None and bias.kind == "dense" and energy is None and sinks is None:
        q, bias = _even(q, bias)
    heads = tuple(lead[:-1])  # of size 1
    wide = (x.double().reshape(*heads, *x.shape) if lead else x[0].double() for x in (q, k))
    follows = p.replaced(
        q=next(wide), k=next(wide), score=DOT if energy is None else _units(energy, h), scale=scale,
        sinks=sinks if lead or sinks is None else sinks[0], dropout=0.0,
        bias=None if bias is None else Laid(bias.kind, bias.values),
        geometry=p.geometry._replace(device=torch.device("cpu")),
    )  # fmt: skip
    listed = None if sinks is None else tuple(sinks.tolist())
    return Stored(Attention(follows), q, k, scale, energy, p.softcap, listed, mask, bias)


def _operands(p: Problem, h: int) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """Queries and keys in float64 whose dot products are the scores, or those of an energy."""
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
    """The score Σ energy · tanh(q + k) of queries and keys that are units already."""
    same = torch.eye(energy.shape[-1], dtype=torch.float64)
    return Additive(same, same, energy.double() if h > 1 else energy[0].double())


def _even(q: Tensor, bias: Rule) -> tuple[Tensor, Rule]:
    """The same where a bias is so low in a whole row that no score is heard beside it.

    Such a row, padding as some libraries hide it, shares alike between its highest keys. As a sum
    with its lse that would drown, too; with a query of 0 and a bias of 0 or −∞ it is exact.
    """
    top = bias.values.amax(-1, keepdim=True)
    low = (top < UNHEARD) & top.isfinite()
    even = torch.zeros_like(bias.values).masked_fill(bias.values < top, -math.inf)
    return q.masked_fill(low, 0), Rule("dense", torch.where(low, even, bias.values))


def _centred(k: Tensor) -> Tensor:
    """Keys without their mean, which adds the same to all scores of a query: no weight changes.

    What keys have in common is often most of them, and would cost the rest its precision. Source:
    Zhang et al. 2025, "SageAttention", section 4.2.
    """
    mean = k.mean(-2, keepdim=True)
    return k - mean if bool(mean.isfinite().all()) else k


def _rounded(x: Tensor, dtype: torch.dtype, scales: bool) -> tuple[Tensor, float]:
    """Numbers in a dtype, and the power of two by which they were multiplied to fit it."""
    if dtype is not torch.float16:
        return x.to(dtype), 1.0
    largest = x[x.isfinite()].abs()
    largest = float(largest.amax()) if largest.numel() else 0.0
    if not scales or largest == 0.0:
        most = torch.finfo(dtype).max
        return x.clamp(-most, most).to(dtype), 1.0
    size = 2.0 ** float(torch.tensor(LARGEST / largest, dtype=torch.float64).log2().floor())
    return (x * size).to(dtype), size
