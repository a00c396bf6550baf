"""Patterns of heads: what they follow, how they differ, and what their weights carry."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intently.core.kernels.native import measuring
from intently.core.kernels.walk import WeightBlock
from intently.core.masks import Geometry, Mask, causal, segments, window
from intently.core.masks.geometry import integers
from intently.core.matrix import statistics
from intently.core.matrix.alignment import links
from intently.core.matrix.lazy import LazyMatrix
from intently.core.matrix.weighted import by_gradient, by_value_norm
from intently.errors import ArgumentError, build, shape_of
from intently.foundation.checks import check_kind

__all__ = [
    "STATISTICS",
    "Average",
    "by_gradient",
    "by_value_norm",
    "duplicate",
    "induction",
    "jensen_shannon",
    "links",
    "mass_on",
    "measure",
    "previous",
]


def previous() -> Mask:
    """Allow only the key just before the query.

    ::

        previous(), t=s=4   · · · ·
                            █ · · ·
                            · █ · ·
                            · · █ ·

    Source: Clark et al. 2019, "What Does BERT Look At?", section 3.1; Voita et al. 2019,
    "Analyzing Multi-Head Self-Attention", section 5.1 (positional heads).
    """
    return window(1, 0) & ~window(0, 0)


def duplicate(ids: Tensor | Sequence[int], t: int | None = None) -> Mask:
    """Allow the keys before a query that hold its own token: token_j = token_i, j < i.

    ``ids`` are the tokens of the keys, (s,) or (b, s); the queries are the last ``t`` of them (all
    where None).

    ::

        duplicate(tensor([5, 7, 5, 7]))   · · · ·
                                          · · · ·
                                          █ · · ·
                                          · █ · ·

    Source: Wang et al. 2023, "Interpretability in the Wild", section 3 (duplicate token heads).
    """
    tokens, queries = _tokens(ids, t)
    return segments(queries, tokens) & causal() & ~window(0, 0)


def induction(ids: Tensor | Sequence[int], t: int | None = None) -> Mask:
    """Allow the keys that follow earlier occurrences of a query's token: token_(j−1) = token_i.

    ``ids`` are the tokens of the keys, (s,) or (b, s); the queries are the last ``t`` of them (all
    where None). j ≤ i, so that a query sees itself if its token has just been repeated.

    ::

        induction(tensor([5, 7, 5, 7]))   · · · ·
                                          · · · ·
                                          · █ · ·
                                          · · █ ·

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads" (prefix matching).
    """
    tokens, queries = _tokens(ids, t)
    named = 1 + _named(tokens)
    before = torch.cat([torch.zeros_like(named[..., :1]), named[..., :-1]], -1)
    return segments(named[..., named.shape[-1] - queries.shape[-1] :], before) & causal()


def mass_on(matrix: LazyMatrix, mask: Mask) -> Tensor:
    """Return the weight of each query on the keys that ``mask`` allows, (…, t): Σ_j w_ij m_ij.

    Raises `ArgumentError` for a mask that does not fit the matrix.

    >>> from intently.core.matrix import Dense
    >>> A = Dense(torch.tensor([[1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [0.125, 0.5, 0.375]]))
    >>> mass_on(A, previous())
    tensor([0.0000, 0.7500, 0.5000])
    >>> mass_on(A, induction([4, 4, 9]))
    tensor([0.0000, 0.2500, 0.0000])
    """
    check_kind(
        mask,
        Mask,
        "mask",
        "a mask such as patterns.previous()",
        fix="wrap a boolean tensor: it.allowed(tensor); for positions write A.mass(keys)",
    )
    *lead, t, s = matrix.shape
    g = Geometry(tuple(lead), t, s, matrix.device)
    mask.check(g)

    wide = torch.promote_types(matrix.dtype, torch.float32)

    def reduce(block: WeightBlock) -> Tensor:
        return (block.weights.to(wide) * allowed_in(mask, g, block)).sum(-1)

    return matrix._per_row(reduce)


def allowed_in(mask: Mask, g: Geometry, block: WeightBlock) -> Tensor:
    """A mask over a block of the matrix ``g``: a boolean that broadcasts to its weights."""
    if block.lead:
        mask = mask.part(block.lead, g)
        g = g._replace(lead=tuple(len(range(n)[c]) for n, c in zip(g.lead, block.lead)))
    at = (torch.arange(x.start, x.stop, device=g.device) for x in (block.rows, block.cols))
    return mask.allow(g, *at)


def appeared(ids: Tensor) -> Tensor:
    """Whether the token at each position has occurred before, (…, s)."""
    named = _named(ids)
    order = named.sort(dim=-1, stable=True)
    again = torch.zeros_like(named, dtype=torch.bool)
    again[..., 1:] = order.values[..., 1:] == order.values[..., :-1]
    return torch.zeros_like(again).scatter_(-1, order.indices, again)


def _named(ids: Tensor) -> Tensor:
    """The same tokens as numbers from 0."""
    return ids.unique(return_inverse=True)[1]


def _tokens(ids: Tensor | Sequence[int], t: int | None) -> tuple[Tensor, Tensor]:
    """Tokens of the keys (…, s) and of the queries (…, t)."""
    tokens = integers(ids, "ids")
    if not tokens.ndim or not tokens.shape[-1]:
        raise build(ArgumentError, "ids", "at least one token, (s,) or (b, s)", shape_of(tokens))
    t = tokens.shape[-1] if t is None else t
    if not 0 <= t <= tokens.shape[-1]:
        expected = f"a token for each key, and so at least t={t}"
        cause = "cross-attention has other tokens on its two sides"
        raise build(ArgumentError, "ids", expected, shape_of(tokens), cause)
    return tokens, tokens[..., tokens.shape[-1] - t :]


def jensen_shannon(matrix: LazyMatrix) -> Tensor:
    """Return the Jensen-Shannon divergence of each two heads, (…, h, h), in nats; 0 if equal.

    JSD(p, q) = H((p + q) / 2) − H(p) / 2 − H(q) / 2 with H(p) = −Σ p log p, averaged over the
    queries that attend to something in both heads. It is at most log 2, if no key is shared. The
    weights of sinks are left out of the sums. Two heads without a common query have NaN.

    Raises `ArgumentError` for a matrix without heads.

    Source: Lin 1991, "Divergence Measures Based on the Shannon Entropy", equation 4.1; of heads,
    Clark et al. 2019, "What Does BERT Look At?", section 6.

    >>> from intently.core.matrix import Dense
    >>> A = Dense(torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]]))
    >>> jensen_shannon(A)
    tensor([[0.0000, 0.0000, 0.6931],
            [0.0000, 0.0000, 0.6931],
            [0.6931, 0.6931, 0.0000]])
    """
    if matrix.ndim < 3:
        expected, got = "a matrix (…, h, t, s)", f"shape {matrix.shape}"
        raise build(ArgumentError, "jensen_shannon", expected, got, "it has no axis of heads")
    h = matrix.shape[-3]
    total, count = matrix._zeros(h), matrix._zeros(h)
    with torch.no_grad():
        for block in blocks_of_heads(matrix, statistics.BLOCK // 4):
            w = block.weights.to(total.dtype)
            sums, alive = w.sum(-1), w.amax(-1) > 0
            own = entropies(w)
            at = block.lead or (...,)
            for a in range(h):
                mixed = w[..., a : a + 1, :, :] + w[..., a:, :, :]
                both = alive[..., a : a + 1, :] & alive[..., a:, :]
                apart = entropies(mixed) - own[..., a : a + 1, :] - own[..., a:, :]
                apart += math.log(2) * (sums[..., a : a + 1, :] + sums[..., a:, :])
                total[at][..., a, a:] += (apart * both).sum(-1) / 2
                count[at][..., a, a:] += both.sum(-1)
    found = (total / count).clamp_min(0).triu()
    return found + found.triu(1).mT


def entropies(w: Tensor) -> Tensor:
    """−Σ w log w over the last axis: logarithms and a dot product, which are vectorised."""
    tiny = torch.finfo(w.dtype).tiny
    return -torch.linalg.vecdot(w, w.clamp_min(tiny).log_())


def blocks_of_heads(matrix: LazyMatrix, size: int) -> Iterator[WeightBlock]:
    """Yield all weights that may differ from 0, about ``size`` at a time, all heads together."""
    return matrix._blocks(size)


STATISTICS = (
    *("entropy", "confidence", "sink", "self", "previous", "duplicate", "induction"),
    *("distance", "divergence"),
)
"""All that `measure` may find, in its order."""

SIZE = 2**20
"""Weights in one block: they and the values derived from them fit the cache."""


@dataclass(frozen=True)
class Average:
    """A sum over queries and their number, for every head (…, h)."""

    total: Tensor
    count: Tensor

    def value(self) -> Tensor:
        """The mean over the queries, NaN where there was none."""
        return self.total / self.count


def measure(matrix: LazyMatrix, ids: Tensor | Sequence[int] | None = None) -> dict[str, Average]:
    """Return the statistics of every head, averaged over its queries, from one pass over the
    weights.

    ``ids`` are the tokens of self-attention, (s,) or (b, s), the last t of which are the queries'.
    With p_i = s − t + i the position of query i, each statistic is a mean over queries of:

    - ``entropy``: −Σ_j w_ij log w_ij, in nats (Shannon 1948, section 6);
    - ``confidence``: max_j w_ij (Voita et al. 2019, section 4);
    - ``sink``: the weight on the first key that gets any (Xiao et al. 2024, "Efficient Streaming
      Language Models with Attention Sinks", section 3.1);
    - ``self``, ``previous``: the weight on key p_i and on key p_i − 1 (Clark et al. 2019, section
      3.1), over queries that have one. A first query that sees itself alone has weight 1 there by
      necessity: it counts neither here nor as a ``sink``;
    - ``duplicate``, ``induction``: the weight on what the masks `duplicate` (Wang et al. 2023) and
      `induction` (Olsson et al. 2022) allow, over queries whose token has appeared before; only
      with ``ids``;
    - ``distance``: Σ_j w_ij |p_i − j|, in steps (Vig & Belinkov 2019);
    - ``divergence``: Σ_j w_ij log(w_ij / w̄_j), w̄ the mean of the layer's heads, in nats: what
      the head adds to their Jensen-Shannon divergence, which is its mean over the heads (Lin
      1991, equation 5.1); only with two heads or more.

    Queries that may attend to nothing are not counted; with ``ids``, neither are tokens that no
    query may see (padding). Gradients do not flow.

    Raises `ArgumentError` for ids of a different shape.

    >>> from intently.core.matrix import Dense
    >>> A = Dense(torch.tensor([[1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [0.125, 0.5, 0.375]]))
    >>> found = measure(A, [4, 9, 4])
    >>> {name: round(float(average.value()), 3) for name, average in found.items()}
    ... # doctest: +NORMALIZE_WHITESPACE
    {'entropy': 0.512, 'confidence': 0.75, 'sink': 0.438, 'self': 0.312, 'previous': 0.625,
     'duplicate': 0.125, 'induction': 0.5, 'distance': 0.5}
    """
    with torch.no_grad():
        rules, again, counted = _of_tokens(matrix, None if ids is None else _checked(matrix, ids))
        names = ["entropy", "confidence", "sink", "self", "previous", "distance"]
        names += ["shared"] * (matrix.shape[-3:-2] > (1,))
        names += ["duplicate", "induction"] if rules else []
        sums = matrix._asked(lambda p: measuring.heads(p, rules, again, counted))
        if sums is None:
            sums = _Pass(matrix, names, rules, again, counted).sums_of_heads()
        return _averages(names, _without_the_first(matrix, sums))


def _checked(matrix: LazyMatrix, ids: Tensor | Sequence[int]) -> Tensor:
    tokens = integers(ids, "ids").to(matrix.device)
    *lead, t, s = matrix.shape
    items = tuple(lead[:-1])
    if t > s:
        cause = "token patterns need self-attention"
        raise build(ArgumentError, "ids", f"None where t={t} > s={s}", shape_of(tokens), cause)
    if tuple(tokens.shape) not in {(s,), (*items, s)}:
        expected = f"shape (s,) = ({s},)" + (f" or {(*items, s)}" if items else "")
        raise build(ArgumentError, "ids", expected, shape_of(tokens))
    return tokens


def _of_tokens(
    matrix: LazyMatrix, ids: Tensor | None
) -> tuple[tuple[Mask, ...], Tensor | None, Tensor | None]:
    """The masks of token patterns, whose token came before, and which queries count, (…, t).

    None where that is nobody, and where all count.
    """
    *lead, t, s = matrix.shape
    if ids is None or not s:
        return (), None, None
    again = appeared(ids)[..., s - t :]
    again = (again.unsqueeze(-2) if lead else again).expand(*lead, t)
    counted = matrix._viewers()[..., s - t :] > 0
    counted = None if bool(counted.all()) else counted.expand(*lead, t)
    return (duplicate(ids, t), induction(ids, t)), again, counted


def _averages(names: list[str], sums: dict[str, Tensor]) -> dict[str, Average]:
    """The statistics in the order of `measure`."""
    counts = {"sink": "sink_count", "self": "self_count", "previous": "previous_count"}
    counts.update(duplicate="again", induction="again")
    averages = {n: Average(sums[n], sums[counts.get(n, "attending")]) for n in names}
    if "shared" in averages:
        averages["divergence"] = Average(-sums["entropy"] - sums["shared"], sums["attending"])
    return {name: averages[name] for name in STATISTICS if name in averages}


def _without_the_first(matrix: LazyMatrix, sums: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sums without the weight of a first query on itself, where it sees nothing else."""
    *lead, t, s = matrix.shape
    alone = torch.zeros_like(sums["attending"])
    if s and t:
        first = (matrix._viewers() > 0).to(torch.uint8).argmax(-1).expand(lead)
        for key in first.unique().tolist():
            row = key - (s - t)
            if 0 <= row < t:
                w = matrix[..., row, :]
                one = (w != 0).sum(-1).eq(1) & (w[..., key] == 1) & (first == key)
                alone = alone + one.to(alone.dtype)
    less = {name: sums[name] - alone for name in ("sink", "self", "self_count")}
    return {**sums, **less, "sink_count": sums["attending"] - alone}


class _Pass:
    """Sums over the blocks of one matrix, which hold all heads of their items."""

    def __init__(
        self,
        matrix: LazyMatrix,
        names: list[str],
        rules: tuple[Mask, ...],
        again: Tensor | None,
        counted: Tensor | None,
    ) -> None:
        self.matrix, self.rules, self.again, self.counted = matrix, rules, again, counted
        *lead, t, s = matrix.shape
        self.geometry, self.first = Geometry(tuple(lead), t, s, matrix.device), s - t
        shape = tuple(lead) or (1,)
        self.columns = matrix._zeros(s).reshape(*shape, s)
        names = [*names, "attending", "self_count", "previous_count", "again"]
        self.sums = {name: matrix._zeros().reshape(shape) for name in names}

    def sums_of_heads(self) -> dict[str, Tensor]:
        """The sums of every head (…)."""
        for block in blocks_of_heads(self.matrix, SIZE):
            self.add(block)
        self.sums["sink"] = self.first_key()
        return {name: x.reshape(self.geometry.lead) for name, x in self.sums.items()}

    def add(self, block: WeightBlock) -> None:
        """Add the sums of a block, which holds all heads of its items."""
        w = block.weights.to(self.columns.dtype)
        if self.counted is not None:
            w = w * _rows(self.counted, block)[..., None]
        most = w.amax(-1)
        at = block.lead or (...,)
        self._count(block, at, most > 0)
        w = w if self.geometry.lead else w[None]
        self.columns[at][..., block.cols] += w.sum(-2)
        self.sums["confidence"][at] += most.sum(-1)
        self.sums["entropy"][at] += entropies(w).sum(-1)
        for name, back in (("self", 0), ("previous", 1)):
            offset = self.first + block.rows.start - back - block.cols.start
            self.sums[name][at] += w.diagonal(offset, -2, -1).sum(-1)
        self._project(block, at, w)

    def _count(self, block: WeightBlock, at: tuple, alive: Tensor) -> None:
        position = torch.arange(block.rows.start, block.rows.stop, device=alive.device) + self.first
        self.sums["attending"][at] += alive.sum(-1)
        self.sums["self_count"][at] += (alive & (position >= 0)).sum(-1)
        self.sums["previous_count"][at] += (alive & (position >= 1)).sum(-1)
        if self.again is not None:
            self.sums["again"][at] += (alive & _rows(self.again, block)).sum(-1)

    def _project(self, block: WeightBlock, at: tuple, w: Tensor) -> None:
        """Sums Σ w · plane over a block, all planes in one product: the weights are read once."""
        names = [n for n in ("distance", "duplicate", "induction", "shared") if n in self.sums]
        *items, _, rows, cols = w.shape
        planes = w.new_empty(*items, len(names), rows, cols)
        first = self.first + block.rows.start - block.cols.start
        steps = torch.arange(first, first + rows, device=w.device)[:, None]
        planes[..., 0, :, :] = (steps - torch.arange(cols, device=w.device)).abs_()
        for n, rule in enumerate(self.rules, 1):
            allow = allowed_in(rule, self.geometry, block)
            planes[..., n, :, :] = allow.squeeze(-3) if allow.ndim > 2 else allow
        if "shared" in names:
            mean = planes[..., -1, :, :]
            torch.mean(w, -3, out=mean)
            mean.clamp_min_(torch.finfo(w.dtype).tiny).log_()
        found = w.flatten(-2) @ planes.flatten(-2).mT
        for n, name in enumerate(names):
            self.sums[name][at] += found[..., n]

    def first_key(self) -> Tensor:
        """The total weight on the first key of each item that gets any."""
        s = self.columns.shape[-1]
        if not s:
            return torch.zeros_like(self.sums["entropy"])
        keys = torch.arange(s, device=self.columns.device)
        used = self.columns.sum(-2, keepdim=True) > 0
        first = keys.where(used, s - 1).amin(-1, keepdim=True)
        return self.columns.gather(-1, first.expand(*self.columns.shape[:-1], 1))[..., 0]


def _rows(per_row: Tensor, block: WeightBlock) -> Tensor:
    return per_row[(*block.lead, ..., block.rows)]
