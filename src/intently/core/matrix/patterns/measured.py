"""Every statistic of the heads of a layer from one pass over its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intently.core.kernels.walk import Block
from intently.core.masks import Geometry, Mask
from intently.core.masks.geometry import integers
from intently.core.matrix.lazy import LazyMatrix
from intently.core.matrix.patterns.heads import blocks_of_heads, entropies
from intently.core.matrix.patterns.kinds import allowed_in, appeared, duplicate, induction
from intently.errors import ArgumentError, build, shape_of

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
        wanted = _Wanted.of(matrix, None if ids is None else _checked(matrix, ids))
        sums = matrix._summed(wanted.rules, wanted.again, wanted.counted)
        sums = _streamed(matrix, wanted) if sums is None else sums
        return _averages(wanted, _without_the_first(matrix, sums))


def _checked(matrix: LazyMatrix, ids: Tensor | Sequence[int]) -> Tensor:
    tokens = integers(ids, "ids").to(matrix.device)
    *lead, t, s = matrix.shape
    items = tuple(lead[:-1])
    if t > s:
        raise build(
            ArgumentError,
            "ids",
            f"None where t={t} > s={s}",
            shape_of(tokens),
            "token patterns need self-attention",
        )
    if tuple(tokens.shape) not in {(s,), (*items, s)}:
        expected = f"shape (s,) = ({s},)" + (f" or {(*items, s)}" if items else "")
        raise build(ArgumentError, "ids", expected, shape_of(tokens))
    return tokens


@dataclass(frozen=True)
class _Wanted:
    """What is asked of a matrix: the masks of token patterns, and which queries are counted."""

    geometry: Geometry
    rules: tuple[Mask, ...]
    again: Tensor | None
    """Whether the token of a query has appeared before, (…, t)."""
    counted: Tensor | None
    """Which queries count, (…, t); None if all do."""

    @classmethod
    def of(cls, matrix: LazyMatrix, ids: Tensor | None) -> _Wanted:
        *lead, t, s = matrix.shape
        geometry = Geometry(tuple(lead), t, s, matrix.device)
        if ids is None or not s:
            return cls(geometry, (), None, None)
        again = appeared(ids)[..., s - t :]
        again = again.unsqueeze(-2) if lead else again
        counted = matrix._viewers()[..., s - t :] > 0
        counted = None if bool(counted.all()) else counted.expand(*lead, t)
        return cls(
            geometry, (duplicate(ids, t), induction(ids, t)), again.expand(*lead, t), counted
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The sums that are asked for and are not counts."""
        names = ("entropy", "confidence", "sink", "self", "previous", "distance")
        names += ("shared",) if self.geometry.lead[-1:] > (1,) else ()
        return names + (("duplicate", "induction") if self.rules else ())


def _averages(wanted: _Wanted, sums: dict[str, Tensor]) -> dict[str, Average]:
    """The statistics in the order of `measure`."""
    counts = {"sink": "sink_count", "self": "self_count", "previous": "previous_count"}
    counts.update(duplicate="again", induction="again")
    averages = {n: Average(sums[n], sums[counts.get(n, "attending")]) for n in wanted.names}
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


def _streamed(matrix: LazyMatrix, wanted: _Wanted) -> dict[str, Tensor]:
    """The sums of every head (…), from blocks of weights that hold all heads of their items."""
    found = _Pass(matrix, wanted)
    for block in blocks_of_heads(matrix, SIZE):
        found.add(block)
    found.sums["sink"] = found.first_key()
    return {name: x.reshape(wanted.geometry.lead) for name, x in found.sums.items()}


class _Pass:
    """Sums over the blocks of one matrix."""

    def __init__(self, matrix: LazyMatrix, wanted: _Wanted) -> None:
        self.wanted = wanted
        *lead, t, s = matrix.shape
        self.first = s - t
        shape = tuple(lead) or (1,)
        new = matrix._zeros
        self.columns = new(s).reshape(*shape, s)
        names = (*wanted.names, "attending", "self_count", "previous_count", "again")
        self.sums = {name: new().reshape(shape) for name in names}

    def add(self, block: Block) -> None:
        """Add the sums of a block, which holds all heads of its items."""
        w = block.weights.to(self.columns.dtype)
        if self.wanted.counted is not None:
            w = w * _rows(self.wanted.counted, block)[..., None]
        most = w.amax(-1)
        at = block.lead or (...,)
        self._count(block, at, most > 0)
        w = w if self.wanted.geometry.lead else w[None]
        self.columns[at][..., block.cols] += w.sum(-2)
        self.sums["confidence"][at] += most.sum(-1)
        self.sums["entropy"][at] += entropies(w).sum(-1)
        for name, back in (("self", 0), ("previous", 1)):
            offset = self.first + block.rows.start - back - block.cols.start
            self.sums[name][at] += w.diagonal(offset, -2, -1).sum(-1)
        self._project(block, at, w)

    def _count(self, block: Block, at: tuple, alive: Tensor) -> None:
        position = torch.arange(block.rows.start, block.rows.stop, device=alive.device) + self.first
        self.sums["attending"][at] += alive.sum(-1)
        self.sums["self_count"][at] += (alive & (position >= 0)).sum(-1)
        self.sums["previous_count"][at] += (alive & (position >= 1)).sum(-1)
        if self.wanted.again is not None:
            self.sums["again"][at] += (alive & _rows(self.wanted.again, block)).sum(-1)

    def _project(self, block: Block, at: tuple, w: Tensor) -> None:
        """Sums Σ w · plane over a block, all planes in one product: the weights are read once."""
        names = [n for n in ("distance", "duplicate", "induction", "shared") if n in self.sums]
        *items, _, rows, cols = w.shape
        planes = w.new_empty(*items, len(names), rows, cols)
        first = self.first + block.rows.start - block.cols.start
        steps = torch.arange(first, first + rows, device=w.device)[:, None]
        planes[..., 0, :, :] = (steps - torch.arange(cols, device=w.device)).abs_()
        for n, rule in enumerate(self.wanted.rules, 1):
            allow = allowed_in(rule, self.wanted.geometry, block)
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


def _rows(per_row: Tensor, block: Block) -> Tensor:
    return per_row[(*block.lead, ..., block.rows)]
