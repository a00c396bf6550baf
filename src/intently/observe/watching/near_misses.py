"""Logits of some rows in parts, and the weights of matrices that are nearly the same.

A check that cannot tell a matrix from its near misses (another scale, a mask off by one, no bias)
proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from intently.core.attention import Attention
from intently.core.kernels.problem import Problem, taken
from intently.core.matrix.labelling import HIDDEN
from intently.core.scores import Dot

SCALED = 1.1, 2.0
"""The scales of near misses, as multiples of the right one: small scores need the larger."""


@dataclass(frozen=True)
class Logits:
    """z (…, n, s) = dot + bias where ``open``, −∞ elsewhere, of some rows of a problem.

    Weights are those of ``columns``, if not all meet values.
    """

    dot: Tensor
    bias: Tensor | None
    open: Tensor
    sinks: Tensor | None
    columns: slice
    problem: Problem
    rows: Tensor

    @staticmethod
    def of(matrix: Attention, rows: Tensor, columns: slice | None = None) -> Logits:
        """The logits of some rows (n,) of a matrix."""
        p = matrix.problem.ready()
        dtype = p.compute_dtype
        dot = p.scaled(taken(p.q, rows).to(dtype), p.k.to(dtype))
        bias, allow = p.bias_tile(rows), p.allow(rows)
        is_open = dot.new_ones(1, 1, dtype=torch.bool) if allow is None else allow
        if bias is not None:
            hidden = bias <= HIDDEN
            is_open, bias = is_open & ~hidden, bias.masked_fill(hidden, 0)
        sinks = p.sinks
        if sinks is not None:
            sinks = sinks.to(dtype)[..., None, None] if sinks.ndim else sinks.to(dtype)
        shape = (*matrix.shape[:-2], len(rows), matrix.shape[-1])
        is_open = is_open.expand(*is_open.shape[:-2], *shape[-2:])
        return Logits(dot.expand(shape), bias, is_open, sinks, columns or slice(None), p, rows)

    @property
    def z(self) -> Tensor:
        """The logits, −∞ where hidden."""
        z = self.dot if self.bias is None else self.dot + self.bias
        return z.masked_fill(~self.open, -torch.inf)

    def weights(self) -> Tensor:
        """The weights (…, n, s); rows in which all is hidden are zero."""
        z = self.z
        if self.sinks is None:
            w = z.softmax(-1).masked_fill(~self.open.any(-1, keepdim=True), 0)
        else:
            w = torch.cat([z, self.sinks.expand(*z.shape[:-1], 1)], -1).softmax(-1)[..., :-1]
        return w[..., self.columns]

    def rounded(self, eps: float) -> Tensor:
        """By how much z moves, as a standard deviation, if each step to it is rounded.

        The steps are q or k, their product, its scale, the bias, and z less its maximum; a number
        moves by at most eps / 2 of itself, anything up to that alike.
        """
        z = self.z
        top = z.amax(-1, keepdim=True)
        top = top if self.sinks is None else top.maximum(self.sinks)
        low = z - top.nan_to_num(0, 0, 0)
        sizes = self._products() + 2 * self.dot.square() + z.square() + low.square()
        return eps / 2 * torch.where(self.open, sizes / 3, 0.0).sqrt()[..., self.columns]

    def _products(self) -> Tensor:
        """Σ (scale · q · k)², the sum of the squares of the terms of each dot product."""
        p, dtype = self.problem, self.dot.dtype
        if type(p.score) is not Dot or p.softcap is not None:
            return self.dot.square()
        scale = p.scale.to(dtype) if isinstance(p.scale, Tensor) else p.scale
        q = taken(p.q, self.rows).to(dtype) * scale
        return q.square() @ p.per_query_head(p.k.to(dtype).square()).mT

    def near_misses(self) -> Iterator[tuple[str, tuple[Logits, ...]]]:
        """What other arguments would make of the same queries and keys, from near to far."""
        yield "another scale", tuple(replace(self, dot=x * self.dot) for x in SCALED)
        if self.bias is not None:
            yield "no bias", (replace(self, bias=None),)
        after, before = _moved(self.open, 1), _moved(self.open, -1)
        last, first = (_moved(~self.open, -1), _moved(~self.open, 1))
        others = self.open | after, self.open | before, self.open & ~last, self.open & ~first
        for other in others:
            if bool((other != self.open).any()):
                yield "another mask", (replace(self, open=other),)


def _moved(x: Tensor, steps: int) -> Tensor:
    """Booleans (…, s) moved along the keys, by 1 or −1."""
    moved = x.roll(steps, -1)
    moved[..., 0 if steps > 0 else -1] = False
    return moved
