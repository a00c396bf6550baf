"""One attention as a page stores it: rounded queries and keys, and the rest of the formula.

A page stores q and k, not the weights: (t + s)·d numbers instead of t·s. The weights computed from
the rounded numbers form a lazy matrix in float64; `bound` measures their difference from the
model's weights.

Most biases depend only on the distance (ALiBi, T5's buckets) or only on the key; these take t + s −
1 or s numbers per head. Biases only need to be exact where the mask allows attention.

Where the model hides a key by a bias of −10⁹, or the lowest float32, the sum loses the score's
digits: a row of padding attends to its keys equally. A page that kept those digits, or lost them in
its lse, would show other weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from intently.core.attention import Attention
from intently.core.biases import Bias
from intently.core.kernels.problem import Problem
from intently.core.masks import Geometry
from intently.core.masks.geometry import Cut
from intently.core.matrix import Dense, LazyMatrix
from intently.core.scores import DOT, Additive
from intently.show.page.packing import check_size

Precision: TypeAlias = Literal["half", "full"]
Kind: TypeAlias = Literal["distance", "key", "dense"]

ROUNDED = {"half": torch.float16, "full": torch.float32}
LARGEST = 2.0**14
"""Half-precision queries and keys are scaled by a power of two to stay below this."""

SAMPLED = 8
"""Rows of each attention that are compared with the model's, and as many with a low bias."""

BLOCK = 2**22
"""Entries of a mask or a bias that are computed together."""

HEARD = 1e-4
"""A bias with a wider spacing of its dtype than this makes scores coarse."""

APART = 32.0
"""At this spacing the lower of two biases leaves its key no weight, e⁻³²."""

STEP = 2.0**23
"""How far below each other such biases are stored."""

MOST = 1024
"""Most different biases of this kind: a page keeps digits for so many."""


class BiasRule(Bias):
    """A bias in float32: of distances (n, t + s − 1), of keys (n, s), or dense (n, t, s).

    n is 1 or h. Distances count from j − i = 1 − t for query i and key j.
    """

    def __init__(self, kind: Kind, values: Tensor) -> None:
        super().__init__(kind, values)
        self.kind: Kind = kind
        self.values = values

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        x = self.values if dtype is None else self.values.to(dtype)
        x = x if g.lead else x[0]
        if self.kind == "distance":
            return x[..., cols - rows[:, None] + g.t - 1]
        if self.kind == "key":
            return x[..., None, cols]
        return x[..., rows[:, None], cols]

    def part(self, cut: Cut, g: Geometry) -> BiasRule:
        if len(self.values) == 1 or not cut:
            return self
        heads = cut[-1] if isinstance(cut[-1], slice) else slice(cut[-1], cut[-1] + 1)
        return BiasRule(self.kind, self.values[heads])

    def __repr__(self) -> str:
        return f"{self.kind} bias"


@dataclass(frozen=True)
class StoredOperands:
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
    bias: BiasRule | None = None
    coarse: Tensor | None = None


@dataclass(frozen=True)
class StoredWeights:
    """The rounded weights (…, t, s) of a matrix that is not made of q and k."""

    matrix: Dense


def stored(matrix: LazyMatrix, precision: Precision) -> StoredOperands | StoredWeights:
    """Round the queries and keys of a matrix of one item, or its weights where it has none.

    Weights that a recording kept as they are have queries and keys of no width, and a bias.
    ``matrix`` is (t, s), (h, t, s) or (1, h, t, s).
    """
    with torch.no_grad():
        if isinstance(matrix, Attention) and matrix.q.shape[-1]:
            kept = _of_problem(matrix.problem.ready(), ROUNDED[precision])
            if kept is not None:
                return kept
        return StoredWeights(Dense(matrix.dense().cpu().to(ROUNDED[precision]).double()))


def bound(matrix: LazyMatrix, kept: StoredOperands | StoredWeights) -> float:
    """Return max |stored − original| over the weights of some rows, ∞ where just one is NaN.

    The rows are evenly spread, plus some in which a low bias makes the scores coarse.
    """
    with torch.no_grad():
        t = matrix.shape[-2]
        rows = torch.linspace(0, t - 1, min(t, SAMPLED)).round().long()
        coarse = kept.coarse if isinstance(kept, StoredOperands) else None
        if coarse is not None and len(coarse):
            some = torch.linspace(0, len(coarse) - 1, min(len(coarse), SAMPLED)).round().long()
            rows = torch.cat([rows, coarse[some]]).unique()
        model = matrix.tile(rows.to(matrix.device)).double().cpu()
        if isinstance(kept, StoredWeights):
            page = kept.matrix.tile(rows)
        else:  # as the page computes them: exp(z − stored lse)
            lse = kept.matrix.lse[..., rows, None]
            page = (kept.matrix.problem.ready().masked(rows) - lse).exp()
            page = page.masked_fill(lse.isneginf(), 0)
        apart = (page - model).abs().masked_fill(page.isnan() & model.isnan(), 0)
        return float(apart.nan_to_num(math.inf).amax()) if apart.numel() else 0.0


# --- queries and keys -----------------------------------------------------------------------------


def _of_problem(p: Problem, dtype: torch.dtype) -> StoredOperands | None:
    """Return the stored numbers of a problem; None where its scores are of an unknown kind."""
    *lead, t, s = p.geometry.shape
    h = lead[-1] if lead else 1
    operands = _operands(p, h)
    if operands is None:
        return None
    q, k, energy = operands
    q = q.expand(*lead, *q.shape[-2:]).reshape(h, t, -1)
    k = k.reshape(-1, s, k.shape[-1])
    scale = 1.0
    if not isinstance(p.scale, Tensor):
        scale = float(p.scale)
    else:  # one for each head
        each = p.scale.double().cpu().expand(*lead, 1, 1).reshape(h, 1, 1)
        q, energy = (q * each, None) if energy is None else (q, energy * each[..., 0])
    mask = _mask_of(p)
    bias, coarse = rule_of(p, mask), None
    if bias is not None:
        if p.sinks is None:  # beside a sink, such keys have no weight
            scores = partial(_scores, p, q * scale, k, None if energy is None else energy * scale)
            even, coarse = _drowned(p, bias, mask, scores)
            q = q.masked_fill(even[..., None], 0.0 if energy is None else LARGEST)  # tanh is 1
        bias = _lifted(bias, p.compute_dtype)
    if dtype is torch.float16 and energy is None and p.softcap is None and p.sinks is None:
        k = _centred(k)
    (q, q_size), (k, k_size) = (_rounded(x, dtype, energy is None) for x in (q, k))
    scale = scale / (q_size * k_size)
    score = DOT
    if energy is not None:  # Σ energy · tanh(q + k) of queries and keys that are projected already
        energy = energy.float()
        same = torch.eye(energy.shape[-1], dtype=torch.float64)
        score = Additive(same, same, energy.double() if h > 1 else energy[0].double())
    sinks = None if p.sinks is None else p.sinks.float().cpu().expand(h)
    heads = tuple(lead[:-1])  # of size 1
    wide = (x.double().reshape(*heads, *x.shape) if lead else x[0].double() for x in (q, k))
    follows = p.replaced(
        q=next(wide),
        k=next(wide),
        score=score,
        scale=scale,
        sinks=sinks if lead or sinks is None else sinks[0],
        dropout=0.0,
        bias=bias,
        geometry=p.geometry._replace(device=torch.device("cpu")),
    )
    listed = None if sinks is None else tuple(sinks.tolist())
    return StoredOperands(
        Attention(follows), q, k, scale, energy, p.softcap, listed, mask, bias, coarse
    )


def _operands(p: Problem, h: int) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """Return float64 queries and keys whose dot products are the scores, or those of an energy."""
    score = p.score.replaced(lambda x: x.double().cpu())
    q, k = p.q.double().cpu(), p.k.double().cpu()
    if not isinstance(score, Additive):
        operands = score.operands(q, k)
        return None if operands is None else (*operands, None)
    w, u, energy, bias = score.parts
    k = p.per_query_head(k) @ u.mT
    k = k if bias is None else k + bias[..., None, :]
    return q @ w.mT, k, energy.expand(h, energy.shape[-1])


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
    largest = float(x[x.isfinite()].abs().max()) if x.isfinite().any() else 0.0
    if not scales or largest == 0.0:
        most = torch.finfo(dtype).max
        return x.clamp(-most, most).to(dtype), 1.0
    size = 2.0 ** float(torch.tensor(LARGEST / largest, dtype=torch.float64).log2().floor())
    return (x * size).to(dtype), size


# --- masks and biases -----------------------------------------------------------------------------


def _mask_of(p: Problem) -> Tensor | None:
    """Return the mask of a problem (1 or h, t, s), True where a query may attend; None for none."""
    return None if p.mask is None else torch.cat([tile for _, tile in _tiles(p, p.mask.allow)], -2)


def rule_of(p: Problem, mask: Tensor | None) -> BiasRule | None:
    """Return the bias of a problem as few numbers; None if there is none or it is 0.

    ``mask`` (1 or h, t, s) is its dense mask: masked entries may have any bias. Raises
    `MemoryRefused` for a dense bias that is too large for a page.
    """
    if p.bias is None:
        return None
    g, ask = p.geometry, _asked(p.bias)
    last_row, last_column = torch.tensor([g.t - 1]), torch.tensor([g.s - 1])
    row = _headed(ask(g, last_row, torch.arange(g.s)), last_row, p)[:, 0]
    column = ask(g, torch.arange(g.t), last_column)
    column = column.reshape(-1, *column.shape[-2:])[..., 0].expand(-1, g.t).flip(-1)[:, 1:]
    by_distance = torch.cat([row.expand(len(column), -1), column], -1)
    rules = [BiasRule("distance", by_distance), BiasRule("key", row)]
    heads = max(len(rule.values) for rule in rules)
    everywhere, cols = g._replace(lead=(1,)), torch.arange(g.s)
    for rows, tile in _tiles(p, ask):
        for rule in tuple(rules):
            its = rule.tile(everywhere, rows, cols)
            same = (its == tile) | (its.isnan() & tile.isnan())
            if not bool((same if mask is None else same | ~mask[:, rows]).all()):
                rules.remove(rule)
        if not rules:
            break
    if rules:
        return rules[0] if bool(rules[0].values.any()) else None
    check_size(
        heads * g.t * g.s * 16 // 3,
        "its bias is dense, t × s numbers: it depends neither on the distance nor on the key alone",
    )
    return BiasRule("dense", torch.cat([tile for _, tile in _tiles(p, ask)], -2))


_Ask: TypeAlias = Callable[[Geometry, Tensor, Tensor], Tensor]


def _asked(bias: Bias) -> _Ask:
    """Return what gives tiles of a bias in float32; what would become −∞ becomes its lowest."""
    least = torch.finfo(torch.float32).min

    def tile(g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        x = bias.tile(g, rows, cols, torch.float64)
        return x.clamp_min(least).where(~x.isneginf(), x).float().cpu()

    return tile


def _tiles(p: Problem, ask: _Ask) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield blocks of rows, and what ``ask`` gives for them, (1 or h, rows, s)."""
    g = p.geometry
    cols = torch.arange(g.s, device=g.device)
    for rows in _blocks(g):
        yield rows.cpu(), _headed(ask(g, rows, cols).cpu(), rows, p)


def _blocks(g: Geometry) -> tuple[Tensor, ...]:
    """Return all rows in pieces of at most `BLOCK` entries."""
    heads = g.lead[-1] if g.lead else 1
    return torch.arange(g.t, device=g.device).split(max(1, BLOCK // max(1, heads * g.s)))


def _headed(tile: Tensor, rows: Tensor, p: Problem) -> Tensor:
    """Return a tile (…, rows, s) of one item as (1 or h, rows, s)."""
    heads = tile.shape[-3] if tile.ndim > 2 else 1
    return tile.expand(*tile.shape[:-2], len(rows), p.geometry.s).reshape(heads, len(rows), -1)


# --- biases that hide -----------------------------------------------------------------------------


def _drowned(
    p: Problem, rule: BiasRule, mask: Tensor | None, scores: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the rows (h, t) whose scores are lost in their bias, and all rows with any.

    ``scores`` gives (h, rows, s) for some rows. A score below half the distance from the highest
    bias to its neighbour is rounded away.
    """
    g = p.geometry._replace(device=torch.device("cpu"))
    h = g.lead[-1] if g.lead else 1
    even, coarse = torch.zeros(h, g.t, dtype=torch.bool), torch.zeros(g.t, dtype=torch.bool)
    if not bool((_spacing(rule.values, p.compute_dtype) > HEARD).any()):
        return even, coarse.nonzero()[:, 0]
    for rows in _blocks(g):
        bias = rule.tile(g._replace(lead=(1,)), rows, torch.arange(g.s)).expand(-1, len(rows), -1)
        if mask is not None:
            bias = bias.masked_fill(~mask[:, rows], -torch.inf)
        space = _spacing(bias.amax(-1), p.compute_dtype)
        low = (space > HEARD).any(0)
        if bool(low.any()):
            most = scores(rows[low]).abs().masked_fill(bias[:, low].isneginf(), 0).amax(-1)
            even[:, rows[low]] = (space[:, low] > HEARD) & (most < space[:, low] / 2)
            coarse[rows[low]] = True
    return even, coarse.nonzero()[:, 0]


def _lifted(rule: BiasRule, dtype: torch.dtype) -> BiasRule:
    """Return the same rule with hiding biases raised to where float64 still resolves scores.

    They keep their order, so far apart that the lower of two keys has no weight.
    """
    values = rule.values
    low = _spacing(values, dtype) >= APART
    kinds = values[low].unique()
    if not 0 < len(kinds) <= MOST:
        return rule
    heard = values[~low & values.isfinite()]
    base = min(0.0, float(heard.amin())) if heard.numel() else 0.0
    rank = len(kinds) - torch.searchsorted(kinds, values.contiguous())
    step = max(STEP, -base / MOST)
    return BiasRule(rule.kind, torch.where(low, base - step * rank, values.double()).float())


def _spacing(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the spacing of finite numbers below 0 in a dtype; 0 for all others."""
    x = values.to(dtype)
    space = (torch.nextafter(x, torch.zeros_like(x)) - x).double()
    return space.where((x < 0) & x.isfinite(), 0)
