"""The operands of one attention matrix, in the form that every kernel reads; and what a kernel is.

z = softcap(scale · score(q, k)) + bias, −∞ where masked; weights = exp z / (Σ exp z + exp sink).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from intently.core.biases import Bias
from intently.core.masks import Geometry, Mask, indexed, is_plain_causal
from intently.core.masks.geometry import cut_right
from intently.core.scores import DOT, Dot, Score
from intently.foundation.values import Value

Span: TypeAlias = slice | Tensor | None
"""Some rows or columns: a slice of them, their positions, or None for all."""

FIELDS = ("q", "k", "score", "mask", "bias", "scale", "softcap", "sinks", "dropout", "geometry")


class Problem:
    """q (…, h, t, d), k (…, g, s, d) and everything that turns them into weights."""

    __slots__ = (*FIELDS, "_tensors")

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        score: Score,
        mask: Mask | None,
        bias: Bias | None,
        scale: float | Tensor,
        softcap: float | None,
        sinks: Tensor | None,
        dropout: float,
        lead: tuple[int, ...],
    ) -> None:
        self.q, self.k, self.score = q, k, score
        self.bias, self.scale, self.softcap, self.sinks = bias, scale, softcap, sinks
        self.dropout, self._tensors = dropout, None
        self.geometry = Geometry(lead, q.shape[-2], k.shape[-2], q.device)
        self.mask = None if mask is None or mask.allows_all(self.geometry) else mask

    @property
    def compute_dtype(self) -> torch.dtype:
        """float32 for the half types, else the dtype of q (contract 7)."""
        return torch.float32 if self.q.dtype in (torch.float16, torch.bfloat16) else self.q.dtype

    @property
    def groups(self) -> int:
        """How many query heads share one key head."""
        if self.q.ndim < 4 or self.k.ndim < 3 or self.k.shape[-3] < 2:
            return 1
        return max(1, self.q.shape[-3] // self.k.shape[-3])

    def is_causal(self) -> bool:
        """Whether the mask is plain `causal()` on a square matrix."""
        if self.mask is None or not is_plain_causal(self.mask):
            return False
        return self.geometry.t == self.geometry.s

    def per_query_head(self, x: Tensor) -> Tensor:
        """Keys or values (…, g, s, d) repeated to the query heads (…, h, s, d)."""
        n = self.groups
        return x if n == 1 else x.repeat_interleave(n, -3)

    def without_unseen(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Keys and values, zero where no query may look, so that NaN in padding is harmless."""
        if self.mask is None or self.geometry.s == 0:
            return given
        seen = self.mask.seen(self.geometry)
        if seen is None:
            return given
        return tuple(torch.where(self._fit(seen, x)[..., None], x, 0) for x in given)

    def _fit(self, seen: Tensor, x: Tensor) -> Tensor:
        """Reduce ``seen`` (…, s) over the axes that x (…, s, d) shares between rows or heads."""
        want = tuple(x.shape[:-1])
        if self.groups > 1 and seen.ndim > 1 and seen.shape[-2] == self.q.shape[-3]:
            seen = seen.unflatten(-2, (want[-2], self.groups)).any(-2)
        while seen.ndim > len(want):
            seen = seen.any(0)
        for axis in range(-seen.ndim, -1):
            if want[axis] == 1 and seen.shape[axis] > 1:
                seen = seen.any(axis, keepdim=True)
        return seen

    def ready(self) -> Problem:
        """Return the problem with keys that are zero where no query looks, for many tiles."""
        (k,) = self.without_unseen(self.k)
        return self if k is self.k else self.replaced(k=k)

    def as_dot(self) -> Problem:
        """Return the problem with the dot product of other queries and keys, where it is one."""
        if type(self.score) is Dot or self.compute_dtype != self.q.dtype:
            return self
        made = self.score.operands(self.q, self.ready().k)
        return self if made is None else self.replaced(q=made[0], k=made[1], score=DOT)

    def replaced(self, **changed: object) -> Problem:
        """Return the problem with some operands changed and the same geometry."""
        other = object.__new__(Problem)
        for name in FIELDS:
            setattr(other, name, changed[name] if name in changed else getattr(self, name))
        other._tensors = None
        return other

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Problem:
        """Return the problem with every tensor x in it replaced by ``change(x)``."""

        def changed(x: Any) -> Any:
            if isinstance(x, Value):
                return x.replaced(change)
            return change(x) if isinstance(x, Tensor) else x

        names = ("q", "k", "score", "mask", "bias", "scale", "sinks")
        return self.replaced(**{name: changed(getattr(self, name)) for name in names})

    def shared_by(self, v: Tensor) -> Problem:
        """Return the problem with leading axes of size 1 as long as those of v (…, g, s, e)."""
        g = self.geometry
        own = tuple(v.shape[:-2])
        own = (*own[:-1], 1) if self.groups > 1 else own
        lead = tuple(torch.broadcast_shapes(g.lead, own)) if g.lead else ()
        return self if lead == g.lead else self.replaced(geometry=g._replace(lead=lead))

    def part(self, cut: tuple[slice, ...]) -> Problem:
        """Return the problem under one slice for each leading axis (of heads, whole groups)."""
        g = self.geometry
        sinks, scale = self.sinks, self.scale
        if sinks is not None and sinks.ndim:
            sinks = cut_rows(sinks, cut)
        if isinstance(scale, Tensor) and scale.ndim > 2:
            scale = cut_right(scale, cut)
        lead = tuple(len(range(n)[c]) for n, c in zip(g.lead, cut))
        return self.replaced(
            q=cut_right(self.q, cut),
            k=self.part_of_keys(self.k, cut),
            sinks=sinks,
            scale=scale,
            geometry=Geometry(lead, g.t, g.s, g.device),
            score=self.score.part(cut, g),
            mask=None if self.mask is None else self.mask.part(cut, g),
            bias=None if self.bias is None else self.bias.part(cut, g),
        )

    def part_of_keys(self, x: Tensor, cut: tuple[slice, ...]) -> Tensor:
        """Keys or values (…, g, s, d) under the same slices."""
        if self.groups == 1:
            return cut_right(x, cut)
        start, stop, _ = cut[-1].indices(self.q.shape[-3])
        n = self.groups
        return cut_right(x, (*cut[:-1], slice(start // n, -(-stop // n))))

    def indexed(self, index: tuple[Any, ...]) -> Problem:
        """Return the problem under any index of the leading axes, as tensors are indexed."""
        g = self.geometry
        index = _with_ends(index, g.lead)
        if all(isinstance(i, slice) for i in index) and self.groups == 1:
            return self.part((*index, *[slice(None)] * (len(g.lead) - len(index))))

        def pick(x: Any) -> Any:
            if not isinstance(x, Tensor) or x.ndim < 2:
                return x
            return x.expand(*g.lead, *x.shape[-2:])[index]

        q, k, sinks = pick(self.q), self.k, self.sinks
        if self.groups > 1 and len(index) == len(g.lead) and isinstance(index[-1], int):
            own = index[-1] % g.lead[-1] // self.groups
            k = k.expand(*g.lead[:-1], *k.shape[-3:])[(*index[:-1], own)]
        else:
            k = pick(self.per_query_head(k))
        return self.replaced(
            q=q,
            k=k,
            scale=pick(self.scale),
            geometry=g._replace(lead=tuple(q.shape[:-2])),
            sinks=sinks if sinks is None or not sinks.ndim else sinks.expand(g.lead)[index],
            score=self.score.part(index, g),
            mask=None if self.mask is None else indexed(self.mask, g, index),
            bias=None if self.bias is None else indexed(self.bias, g, index),
        )

    def allow(self, rows: Span = None, cols: Span = None) -> Tensor | None:
        """The mask for some rows and columns (None: all); returns None if every key is allowed."""
        if self.mask is None:
            return None
        g = self.geometry
        return self.mask.allow(g, positions(rows, g.t, g.device), positions(cols, g.s, g.device))

    def logits(self, rows: Span = None, cols: Span = None) -> Tensor:
        """Logits z (…, rows, cols) before the mask; the problem must be `ready`."""
        dtype = self.compute_dtype
        z = self.scaled(taken(self.q, rows).to(dtype), taken(self.k, cols).to(dtype))
        bias = self.bias_tile(rows, cols)
        return z if bias is None else z + bias

    def masked(self, rows: Span = None, cols: Span = None) -> Tensor:
        """Logits z (…, rows, cols), −∞ where the mask forbids."""
        z, allow = self.logits(rows, cols), self.allow(rows, cols)
        if allow is None:
            return z
        if z.requires_grad:
            return z.masked_fill(~allow, -math.inf)
        return z.masked_fill_(~allow, -math.inf)

    @property
    def open_limit(self) -> float | None:
        """Where no mask was applied, logits up to this are hidden: only a bias can hide there."""
        return None if self.bias is None else -math.inf

    def hiding(self, z: Tensor) -> float:
        """The number to add to hidden logits; −∞ if no finite number would separate them.

        Converting bytes to numbers and adding them is faster than masking with booleans, and a very
        low number hides as well as −∞, provided that all logits are far from it.
        """
        lowest = torch.finfo(z.dtype).min / 4
        if z.device.type != "cpu" or not z.numel():
            return -math.inf
        low, high = torch.aminmax(z)
        return lowest if float(low) > lowest / 2 and float(high) < -lowest / 2 else -math.inf

    def hide(self, z: Tensor, rows: Span, cols: Span, low: float) -> None:
        """Hide forbidden entries in place by ``low``, which `hiding` returned for these logits."""
        allow = self.allow(rows, cols)
        if allow is None:
            return
        if low == -math.inf:
            z.masked_fill_(~allow, low)
        else:
            z.add_(allow.view(torch.uint8).to(z.dtype).sub_(1), alpha=-low)

    def clear(self, w: Tensor, rows: Span, cols: Span) -> Tensor:
        """Weights, 0 where the mask forbids: a softmax spreads the NaN of a query over its row."""
        allow = self.allow(rows, cols)
        return w if allow is None else w.masked_fill(~allow, 0)

    def tile_softmax(self, z: Tensor, rows: Span, cols: Span, full: bool) -> tuple[Tensor, Tensor]:
        """`softmax` of a tile of logits, masked unless the mask leaves it ``full``."""
        if full:
            return self.softmax(z, self.open_limit)
        low = self.hiding(z)
        self.hide(z, rows, cols, low)
        return self.softmax(z, low / 2)

    def softmax(self, z: Tensor, limit: float | None) -> tuple[Tensor, Tensor]:
        """Softmax over the columns of some logits, in place, and its lse (…, rows, 1).

        Logits up to ``limit`` are hidden; None if there are none. PyTorch's softmax reads a tile
        once, and the lse follows from its largest weight. Rows in which all is hidden have lse −∞
        and any finite weights.
        """
        top = z.amax(-1, keepdim=True)
        w = torch.softmax(z, -1, out=z)
        lse = top - w.amax(-1, keepdim=True).log()
        if limit is None:
            return w, lse
        if limit == -math.inf and bool(top.isneginf().any()):
            w.masked_fill_(top.isneginf(), 0)
        return w, lse.masked_fill(top <= limit, -math.inf)

    def scaled(self, q: Tensor, k: Tensor) -> Tensor:
        """softcap(scale · score(q, k)) for some of the queries and keys."""
        k = self.per_query_head(k)
        plain = type(self.score) is Dot
        scale = self.scale.to(q.dtype) if isinstance(self.scale, Tensor) else self.scale
        z = (q * scale) @ k.transpose(-2, -1) if plain else self.score(q, k) * scale
        return z if self.softcap is None else self.softcap * torch.tanh(z / self.softcap)

    def bias_tile(self, rows: Span = None, cols: Span = None) -> Tensor | None:
        """The bias for some rows and columns, (…, rows, cols) or broadcastable to it."""
        if self.bias is None:
            return None
        g = self.geometry
        at = positions(rows, g.t, g.device), positions(cols, g.s, g.device)
        return self.bias.tile(g, *at, self.compute_dtype)

    def matrix_bytes(self) -> int:
        """Bytes of the whole (…, t, s) matrix in the dtype it is computed in."""
        size = torch.finfo(self.compute_dtype).bits // 8
        return math.prod(self.geometry.shape) * size

    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor the matrix depends on."""
        if self._tensors is None:
            own = [self.q, self.k]
            for x in (self.sinks, self.scale):
                if isinstance(x, Tensor):
                    own.append(x)
            for value in (self.score, self.mask, self.bias):
                if value is not None and value.parts:
                    own += value.tensors()
            self._tensors = tuple(own)
        return self._tensors


class Kernel:
    """One way to compute weights @ v; ``name``, ``note``, ``memory``, ``multiply`` are its own."""

    name: ClassVar[str]
    note: ClassVar[str]
    """Which derivatives and transforms it can, and what they cost."""
    device: ClassVar[str | None] = None
    """The kind of device it runs on, None for every kind."""

    def present(self) -> bool:
        """Whether this machine can run it."""
        return self.device is None or getattr(torch, self.device).is_available()

    def refuses(self, problem: Problem, v: Tensor) -> str | None:
        """Why it cannot run the call; None if it can."""

    def yields(self, problem: Problem, v: Tensor) -> str | None:
        """Why a later kernel is the better choice; None if this one is."""

    def serves(self, problem: Problem, v: Tensor) -> bool:
        """Whether it can run the call and no later kernel is better."""
        return self.refuses(problem, v) is None and self.yields(problem, v) is None

    def writes(self, problem: Problem, v: Tensor) -> str | None:
        """What it materialises at size t × s; None if nothing."""

    def memory(self, problem: Problem, v: Tensor) -> int:
        """Bytes it needs beside its inputs."""
        raise NotImplementedError

    def multiply(self, problem: Problem, v: Tensor) -> Tensor:
        """The product (…, t, e) in the dtype of q."""
        raise NotImplementedError


def positions(span: Span, size: int, device: torch.device) -> Tensor:
    """Return the positions of a span of an axis as a tensor."""
    if isinstance(span, Tensor):
        return span
    if span is None:
        return torch.arange(size, device=device)  # in a trace the size may change
    start, stop, _ = span.indices(size)
    return torch.arange(start, stop, device=device)


def _with_ends(index: tuple[Any, ...], lead: tuple[int, ...]) -> tuple[Any, ...]:
    """Return every slice with both ends written out, equal ends if it is empty."""
    found: list[Any] = []
    axis = 0
    for i in index:
        if isinstance(i, slice):
            start, stop, step = i.indices(lead[axis])
            i = slice(start, max(start, stop), step)
        axis += i.ndim if isinstance(i, Tensor) and i.dtype is torch.bool else 1
        found.append(i)
    return tuple(found)


def taken(x: Tensor, span: Span) -> Tensor:
    """Take a span of the steps of x (…, steps, d); slices are views."""
    if span is None:
        return x
    return x.index_select(-2, span) if isinstance(span, Tensor) else x[..., span, :]


def four_axes(x: Tensor, g: Geometry, heads: int) -> Tensor:
    """View x as (b, heads, steps, width), the leading axes before the heads taken together."""
    lead = g.lead[:-1]
    if x.ndim != 4 or x.shape[:2] != (*lead, heads):
        x = x.expand(*lead, heads, *x.shape[-2:]).reshape(math.prod(lead), heads, *x.shape[-2:])
    return x if x.stride(-1) == 1 else x.contiguous()


def cut_rows(x: Tensor, cut: tuple[slice, ...]) -> Tensor:
    """Cut x (…, h), one number for each leading index, as `cut_right` cuts a matrix."""
    return cut_right(x[..., None, None], cut)[..., 0, 0]
