"""Masks by numbers of each row of a batch: prefixes, padding and segments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from intently.core.masks.block_states import Queries, Rows, any_of, edges, states, unless_all
from intently.core.masks.geometry import (
    Cut,
    Geometry,
    Integers,
    copied,
    cut_left,
    integers,
    lengths_may_change,
    pick,
    written,
)
from intently.core.masks.mask import Allowed, Mask, as_booleans, zeros_and_ones
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import hidden, plain, valued
from intently.foundation.checks import whole_number
from intently.foundation.field_names import answered


class First(Mask):
    """The first n keys, n an int or one per batch row."""

    per_key = True
    name = "n"

    def __init__(self, n: int | Tensor) -> None:
        super().__init__(n)
        self.n = n

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return cols[None, :] < self.counts(g)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        n = self.n
        return j < (pick(g, n, lead[: n.ndim]) if isinstance(n, Tensor) else n)

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        e, n = edges(g, rows, cols), self.counts(g)
        return states(g, rows, cols, e.left >= n.max(), e.right < n.min())

    def seen(self, g: Geometry) -> Tensor | None:
        return None if g.t and self.allows_all(g) else super().seen(g)

    def queries(self, g: Geometry) -> Rows:
        keys = torch.arange(g.s, device=g.device)
        last = torch.where(keys < self.counts(g)[..., 0], g.t - 1, -1)
        return [Queries(torch.zeros_like(last), last)]

    def check(self, g: Geometry) -> None:
        if isinstance(self.n, Tensor):
            g.align(self.n, self.name)

    def counts(self, g: Geometry) -> Tensor:
        """How many keys are seen, (…, 1, 1)."""
        if isinstance(self.n, Tensor) and self.n.numel():
            return g.align(self.n, self.name)
        return torch.tensor([[0 if isinstance(self.n, Tensor) else self.n]], device=g.device)

    def _most(self) -> int:
        return int(self.n.max()) if isinstance(self.n, Tensor) and self.n.numel() else 0


class _Prefix(First):
    def allows_all(self, g: Geometry) -> bool:
        return isinstance(self.n, int) and not lengths_may_change() and self.n >= g.s

    def extent(self) -> int:
        n = self._most() if isinstance(self.n, Tensor) else self.n
        return min(1024, max(16, 2 * n))

    def __repr__(self) -> str:
        return f"prefix({written(self.n)})"


class Padding(First):
    """The first ``n`` (b,) keys of each row."""

    name = "lengths"

    def size(self) -> tuple[int, int] | None:
        return None if self._most() < 1 else (self._most(), self._most())

    def __repr__(self) -> str:
        return f"padding({written(self.n)})"


class RealKeys(Allowed):
    """Booleans (b, s): the keys of each row that are real, not padding."""

    per_key = True

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return pick(g, self.tensor, (*lead[: self.tensor.ndim - 1], j))

    def check(self, g: Geometry) -> None:
        if self.tensor.shape[-1] != g.s:
            expected = f"shape (b, s={g.s}), one entry for each key"
            raise build(ArgumentError, "padding", expected, shape_of(self.tensor))
        if g.s:
            g.align(self.tensor[..., 0], "padding")

    def queries(self, g: Geometry) -> Rows:
        last = torch.where(self.laid(g)[..., 0, :], g.t - 1, -1)
        return [Queries(torch.zeros_like(last), last)]

    def part(self, cut: Cut, g: Geometry) -> Mask:
        return RealKeys(cut_left(self.tensor, cut[: self.tensor.ndim - 1]))

    def lead(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[:-1])

    def size(self) -> tuple[int, int] | None:
        s = self.tensor.shape[-1]
        return (s, s) if s else None

    def laid(self, g: Geometry) -> Tensor:
        x = self.tensor.to(g.device)
        ones = (1,) * (len(g.lead) - x.ndim + 2)
        return x.reshape(*x.shape[:-1], *ones, x.shape[-1])

    def __repr__(self) -> str:
        return f"padding({'×'.join(map(str, self.tensor.shape))} booleans)"


@answered
def prefix(n: int | Integers) -> Mask:
    """Every query sees the first n keys; n is an int, or integers (b,), one per batch row.

    ::

        causal() | prefix(2), t=s=4   █ █ · ·
                                      █ █ · ·
                                      █ █ █ ·
                                      █ █ █ █
    """
    if isinstance(n, (Tensor, list, tuple, np.ndarray)):
        return _Prefix(integers(n, "n"))
    return _Prefix(whole_number(n, "n", 0))


@answered
def padding(lengths: Integers | Sequence[Sequence[int]]) -> Mask:
    """Every query of batch row i sees the first ``lengths[i]`` keys; lengths (b,), a tensor or a
    list.

    ::

        padding([2]), t=2, s=4   █ █ · ·
                                 █ █ · ·

    Or booleans (b, s), True for the real keys of each row, wherever the padding is: a tokenizer's
    ``attention_mask`` is ``it.padding(attention_mask.bool())``.

    ::

        padding([[False, True, True]]), t=2, s=3   · █ █
                                                   · █ █

    A row without keys attends to nothing, so its result is exactly zero (contract 4). Raises
    `KindError` for numbers that are neither integers nor booleans, and for an integer matrix of 0
    and 1, which no one means as lengths.
    """
    expected = "integer lengths (b,), or booleans (b, s)"
    x = lengths if isinstance(lengths, Tensor) else copied(lengths, "lengths", expected)
    if not plain(x):
        raise hidden(x, "lengths")
    if x.dtype is not torch.bool:
        if x.ndim > 1 and x.shape[-1] > 1 and zeros_and_ones(x):
            got = f"zeros and ones {shape_of(x)}"
            cause = "it looks like the attention_mask of a tokenizer"
            fix = f"pass it.padding({as_booleans(lengths, 'mask')})"
            raise build(KindError, "lengths", expected, got, cause, fix)
        return Padding(integers(lengths, "lengths"))
    if x.ndim < 2:
        cause, fix = "one text is a batch of 1", "pass it.padding(m[None])"
        raise build(ArgumentError, "lengths", expected, f"booleans {shape_of(x)}", cause, fix)
    return RealKeys(x)


class Segments(Mask):
    """Keys with the id of the query."""

    def __init__(self, query_ids: Tensor, key_ids: Tensor | None = None) -> None:
        super().__init__(query_ids, key_ids)
        self.query_ids = query_ids
        self.key_ids = query_ids if key_ids is None else key_ids

    def sides(
        self, g: Geometry, rows: Tensor | None = None, cols: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Ids of queries (…, t) and keys (…, s), aligned with the leftmost leading axes."""
        pairs = (self.query_ids, rows, "query_ids"), (self.key_ids, cols, "key_ids")
        sides = []
        for ids, index, name in pairs:
            ids = ids.to(g.device) if index is None else ids.to(g.device)[..., index]
            steps = ids.shape[-1]
            lead = g.align(ids[..., 0], name).shape if steps else (1,) * (len(g.lead) + 2)
            sides.append(ids.reshape(*lead[:-2], steps))
        return sides[0], sides[1]

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        q, k = self.sides(g, rows, cols)
        return q[..., :, None] == k[..., None, :]

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        q, k = self.query_ids, self.key_ids
        return pick(g, q, (*lead[: q.ndim - 1], i)) == pick(g, k, (*lead[: k.ndim - 1], j))

    def check(self, g: Geometry) -> None:
        for ids, steps, name in (
            (self.query_ids, g.t, "query_ids"),
            (self.key_ids, g.s, "key_ids"),
        ):
            if ids.shape[-1] != steps:
                letter = "t" if name == "query_ids" else "s"
                expected = f"shape (…, {letter}={steps})"
                fix = "give one id per step, and key_ids of their own where t and s differ"
                raise build(ArgumentError, name, expected, shape_of(ids), fix=fix)
            if steps:
                g.align(ids[..., 0], name)

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        q, k = self._pair(g)
        if not (q.numel() and k.numel()):
            return super().blocks(g, rows, cols)
        (q_least, q_most), (k_least, k_most) = _least_and_most(q, rows), _least_and_most(k, cols)
        q_least, q_most = q_least[..., :, None], q_most[..., :, None]
        k_least, k_most = k_least[..., None, :], k_most[..., None, :]
        full = (q_least == q_most) & (k_least == k_most) & (q_least == k_least)
        if is_sorted(k):
            empty = ~_touched(q, k, rows, cols)
        elif is_sorted(q):
            empty = ~_touched(k, q, cols, rows).mT
        else:
            empty = ((q_least > k_most) | (q_most < k_least)).all(0)
        return states(g, rows, cols, empty, full.all(0))

    def seen(self, g: Geometry) -> Tensor | None:
        if self.key_ids is self.query_ids:
            return None
        rows = self.queries(g)
        if rows is not None:
            return unless_all(any_of(rows))
        q, k = self.sides(g)
        return unless_all(any_of(_among(q.sort(-1).values, k)))

    def queries(self, g: Geometry) -> Rows:
        q, k = self.sides(g)
        return _among(q, k) if valued(q) and is_sorted(q) else None

    def part(self, cut: Cut, g: Geometry) -> Mask:
        q, k = self.query_ids, self.key_ids
        q_part = cut_left(q, cut[: q.ndim - 1])
        return Segments(q_part, None if k is q else cut_left(k, cut[: k.ndim - 1]))

    def lead(self) -> tuple[int, ...]:
        return max(tuple(self.query_ids.shape[:-1]), tuple(self.key_ids.shape[:-1]), key=len)

    def size(self) -> tuple[int, int] | None:
        return self.query_ids.shape[-1], self.key_ids.shape[-1]

    def _pair(self, g: Geometry) -> tuple[Tensor, Tensor]:
        """Ids (n, t) and (n, s) for the n leading indices for which the rule differs."""
        q, k = self.sides(g)
        lead = torch.broadcast_shapes(q.shape[:-1], k.shape[:-1])
        n = lead.numel()
        return q.expand(*lead, g.t).reshape(n, g.t), k.expand(*lead, g.s).reshape(n, g.s)

    def __repr__(self) -> str:
        if self.query_ids is self.key_ids:
            return f"segments({written(self.query_ids)})"
        return f"segments({written(self.query_ids)}, {written(self.key_ids)})"


def is_sorted(ids: Tensor) -> bool:
    """Whether ids (…, steps) never fall."""
    return bool((ids[..., 1:] >= ids[..., :-1]).all())


def _among(q: Tensor, k: Tensor) -> list[Queries]:
    """Positions of the keys' ids among sorted query ids: (…, t) and (…, s) that broadcast."""
    lead = torch.broadcast_shapes(q.shape[:-1], k.shape[:-1])
    q, k = (x.expand(*lead, x.shape[-1]).contiguous() for x in (q, k))
    return [Queries(torch.searchsorted(q, k), torch.searchsorted(q, k, right=True) - 1)]


def _least_and_most(ids: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Least and greatest id (n, blocks) of each block of ids (n, steps)."""
    fill = ids[..., -1:].expand(*ids.shape[:-1], -ids.shape[-1] % size)
    ids = torch.cat([ids, fill], -1).unflatten(-1, (-1, size))
    return ids.amin(-1), ids.amax(-1)


def _touched(ids: Tensor, ordered: Tensor, rows: int, cols: int) -> Tensor:
    """Whether a block of ``ids`` (n, t) holds an id of a block of ``ordered`` (n, s), any of n.

    Each id of ``ids`` stands in one run of ``ordered``, which touches one run of its blocks: +1
    where the run of blocks begins, −1 behind it, and the running sum is positive where any goes.
    """
    n, t = ids.shape
    blocks = (-(-t // rows), -(-ordered.shape[-1] // cols) + 1)
    (run,) = _among(ordered, ids)
    here = run.first <= run.last
    block = torch.arange(t, device=ids.device).expand(n, t) // rows
    change = torch.zeros(blocks, dtype=torch.int64, device=ids.device).flatten()
    begin = block * blocks[1] + run.first // cols
    behind = block * blocks[1] + run.last // cols + 1
    change.index_add_(0, begin[here], torch.ones_like(begin[here]))
    change.index_add_(0, behind[here], -torch.ones_like(behind[here]))
    return change.reshape(blocks).cumsum(1)[:, :-1] > 0


@answered
def segments(query_ids: Integers, key_ids: Integers | None = None) -> Mask:
    """Queries see keys of the same segment; ids (…, t) and (…, s), for packed documents.

    ::

        segments(tensor([0, 0, 1]))   █ █ ·
                                      █ █ ·
                                      · · █
    """
    query_ids = integers(query_ids, "query_ids")
    return Segments(query_ids, None if key_ids is None else integers(key_ids, "key_ids"))
