"""How a tensor of somebody's code holds heads: every way in which it may be read.

Letters are the axes in memory, outermost first: ``bthd`` is (b, t, h·d), the usual projection;
``bhtd`` heads apart, or, of a projection, heads split by a reshape; x is the axis of a fused
projection, ``btxhd`` for (3, h, d) and ``bthxd`` for (h, 3, d).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

SPLITS = ("bthd", "btdh", "bhtd", "tbhd", "hbtd", "thbd", "htbd")
"""Orders of a projection (b, t, h·d) in memory; those after the second scramble the text."""

EXCHANGED = "~bhtd"
"""An output (b, h, t, d) in which heads and rows of the batch were taken for one another."""

THIRDS = ((0, 1, 2), (0, 2, 1), (1, 2, 0))
"""Which thirds of a fused projection are queries, keys, values: the usual order first."""


@dataclass(frozen=True)
class View:
    """A way to read one operand (b, h, t, d) from the tensor of a source."""

    source: int
    order: str
    start: int = 0
    stop: int | None = None
    part: int | None = None
    parts: int = 1

    def sizes(self, b: int, h: int, t: int, d: int) -> tuple[int, ...]:
        """The sizes of the axes of ``order``."""
        known = {"b": b, "h": h, "t": t, "d": d, "x": self.parts}
        return tuple(known[c] for c in self.order)

    def fits(self, raw: Tensor, b: int, h: int, t: int, d: int) -> bool:
        """Whether a tensor has as many numbers as the operand."""
        return self._cut(raw).numel() == math.prod(self.sizes(b, h, t, d))

    def read(self, raw: Tensor, b: int, h: int, t: int, d: int) -> Tensor:
        """The operand (b, h, t, d), a view where one is possible."""
        x = self._cut(raw).reshape(self.sizes(b, h, t, d))
        order = self.order
        if self.part is not None:
            x = x.select(order.index("x"), self.part)
            order = order.replace("x", "")
        return x.permute([order.index(c) for c in "bhtd"])

    def write(self, raw: Tensor, x: Tensor) -> Tensor:
        """A copy of the tensor of a source, with the operand (b, h, t, d) in its place."""
        out = raw.clone(memory_format=torch.contiguous_format)
        index = self.read(torch.arange(out.numel()).view(out.shape), *x.shape)
        out.view(-1)[index.reshape(-1)] = x.reshape(-1)
        return out

    def _cut(self, raw: Tensor) -> Tensor:
        if self.start == 0 and self.stop is None:
            return raw
        return raw[..., self.start : self.stop]


@dataclass(frozen=True)
class Reading:
    """Queries, keys and values, read from the sources of a core; ``name`` is the convention."""

    views: tuple[View, ...]
    heads: int
    key_heads: int
    width: int
    value_width: int
    name: str = ""

    @property
    def q(self) -> View:
        """How queries are read."""
        return self.views[0]

    @property
    def k(self) -> View:
        """How keys are read."""
        return self.views[1]

    @property
    def v(self) -> View:
        """How values are read."""
        return self.views[2]


def joined(x: Tensor, order: str, b: int, h: int, t: int, e: int) -> Tensor | None:
    """An output as (b, h, t, e), read in an order of its memory; None if it does not fit."""
    if order == EXCHANGED:
        x, order = x.transpose(0, 1), "bhtd"
    known = {"b": b, "h": h, "t": t, "d": e}
    if x.numel() != b * h * t * e:
        return None
    sizes = [known[c] for c in order]
    return x.reshape(sizes).permute([order.index(c) for c in "bhtd"])


def plainly(shape: tuple[int, ...], order: str, sizes: dict[str, int]) -> bool:
    """Whether a shape is that of an order of axes, some neighbours of which may be joined."""
    left = [sizes[c] for c in order if c in sizes]
    for n in shape:
        size = 1
        while left and size < n:
            size *= left.pop(0)
        if size != n:
            return False
    return math.prod(left) == 1 and order != EXCHANGED


def readings(
    shapes: Mapping[str, tuple[int, tuple[int, ...]]],
    b: int,
    t: int,
    s: int,
    heads: list[int],
    order: str,
) -> Iterator[Reading]:
    """All conventional readings: ``shapes`` has the source and the shape of q, k and v."""
    (iq, sq), (ik, sk), (iv, sv) = (shapes[n] for n in "qkv")
    if iq == ik == iv:
        yield from _fused(iq, sq[-1], heads, order)
    elif ik == iv:
        yield from _two_fused((iq, sq[-1]), (ik, sk[-1]), heads, order)
    elif iq == ik:
        return
    else:
        yield from _apart((iq, sq), (ik, sk), (iv, sv), b, t, s, heads, order)


def _apart(
    q: tuple[int, tuple[int, ...]],
    k: tuple[int, tuple[int, ...]],
    v: tuple[int, tuple[int, ...]],
    b: int,
    t: int,
    s: int,
    heads: list[int],
    order: str,
) -> Iterator[Reading]:
    nq, nk, nv = (math.prod(shape) // (b * n) for (_, shape), n in ((q, t), (k, s), (v, s)))
    for h in heads:
        if nq % h or nk % (nq // h):
            continue
        d = nq // h
        g = nk // d
        if not g or h % g or nv % g:
            continue
        views = (View(i, order) for i, _ in (q, k, v))
        yield Reading(tuple(views), h, g, d, nv // g)


def _fused(i: int, n: int, heads: list[int], order: str) -> Iterator[Reading]:
    lead = order[:2]
    for h in heads:
        if n % (3 * h) == 0:
            d = n // (3 * h)
            if order == "bhdt":
                views = (View(i, "bxhdt", part=p, parts=3) for p in range(3))
                yield Reading(tuple(views), h, h, d, d, "(3, h, d)")
                views = (View(i, "bhxdt", part=p, parts=3) for p in range(3))
                yield Reading(tuple(views), h, h, d, d, "(h, 3, d)")
                continue
            for parts in THIRDS:
                thirds = (View(i, order, p * h * d, (p + 1) * h * d) for p in parts)
                yield Reading(tuple(thirds), h, h, d, d, "(3, h, d)")
                for inner, name in (("hxd", "(h, 3, d)"), ("hdx", "(h, d, 3)")):
                    views = (View(i, lead + inner, part=p, parts=3) for p in parts)
                    yield Reading(tuple(views), h, h, d, d, name)
        for g in range(1, h if order != "bhdt" else 1):
            if h % g or n % (h + 2 * g):
                continue
            d = n // (h + 2 * g)
            ends = (0, h * d, (h + g) * d, n)
            views = (View(i, order, a, z) for a, z in pairwise(ends))
            yield Reading(tuple(views), h, g, d, d, "(h + 2 g, d)")


def _two_fused(
    q: tuple[int, int], kv: tuple[int, int], heads: list[int], order: str
) -> Iterator[Reading]:
    lead = order[:2]
    for h in heads:
        if q[1] % h:
            continue
        d = q[1] // h
        if kv[1] % (2 * d):
            continue
        g = kv[1] // (2 * d)
        if not g or h % g:
            continue
        if order == "bhdt":
            views = (View(kv[0], "bxhdt", part=p, parts=2) for p in range(2))
            yield Reading((View(q[0], order), *views), h, g, d, d, "(2, g, d)")
            continue
        halves = (View(kv[0], order, p * g * d, (p + 1) * g * d) for p in range(2))
        yield Reading((View(q[0], order), *halves), h, g, d, d, "(2, g, d)")
        for inner, name in (("hxd", "(g, 2, d)"), ("hdx", "(g, d, 2)")):
            views = (View(kv[0], lead + inner, part=p, parts=2) for p in range(2))
            yield Reading((View(q[0], order), *views), h, g, d, d, name)
