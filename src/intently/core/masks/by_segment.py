"""Masks of packed documents: queries see the keys of their own segment."""

from __future__ import annotations

import torch
from torch import Tensor

from intently.core.masks.closed_forms import Queries, Rows, any_of, states, unless_all
from intently.core.masks.geometry import Cut, Geometry, Integers, cut_left, integers, pick, written
from intently.core.masks.mask import Mask
from intently.errors import ArgumentError, build, shape_of
from intently.foundation.arrays import valued
from intently.foundation.field_names import answered


class Segments(Mask):
    """Keys with the id of the query."""

    def __init__(self, query_ids: Tensor, key_ids: Tensor | None = None) -> None:
        super().__init__(query_ids, key_ids)
        self.query_ids = query_ids
        self.key_ids = query_ids if key_ids is None else key_ids

    def _side(self, g: Geometry, ids: Tensor, index: Tensor | None, name: str) -> Tensor:
        """Ids at some steps, aligned with the leftmost leading axes: (…, len(index))."""
        ids = ids.to(g.device) if index is None else ids.to(g.device)[..., index]
        steps = ids.shape[-1]
        lead = g.align(ids[..., 0], name).shape if steps else (1,) * (len(g.lead) + 2)
        return ids.reshape(*lead[:-2], steps)

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        q = self._side(g, self.query_ids, rows, "query_ids")
        k = self._side(g, self.key_ids, cols, "key_ids")
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
                raise build(
                    ArgumentError,
                    name,
                    f"shape (…, {letter}={steps})",
                    shape_of(ids),
                    fix="give one id per step, and key_ids of their own where t and s differ",
                )
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
        q = self._side(g, self.query_ids, None, "query_ids").sort(-1).values
        return unless_all(any_of(_among(q, self._side(g, self.key_ids, None, "key_ids"))))

    def queries(self, g: Geometry) -> Rows:
        q = self._side(g, self.query_ids, None, "query_ids")
        if not valued(q) or not is_sorted(q):
            return None
        return _among(q, self._side(g, self.key_ids, None, "key_ids"))

    def part(self, cut: Cut, g: Geometry) -> Mask:
        q, k = self.query_ids, self.key_ids
        q_part = cut_left(q, cut[: q.ndim - 1])
        return Segments(q_part, None if k is q else cut_left(k, cut[: k.ndim - 1]))

    def lead(self) -> tuple[int, ...]:
        return max(tuple(self.query_ids.shape[:-1]), tuple(self.key_ids.shape[:-1]), key=len)

    def size(self) -> tuple[int, int] | None:
        return self.query_ids.shape[-1], self.key_ids.shape[-1]

    def sides(self, g: Geometry) -> tuple[Tensor, Tensor]:
        """Ids of all queries (…, t) and keys (…, s), aligned with the leading axes."""
        q = self._side(g, self.query_ids, None, "query_ids")
        return q, self._side(g, self.key_ids, None, "key_ids")

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
