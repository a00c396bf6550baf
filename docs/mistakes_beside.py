"""Programs whose mistakes show beside something else: a reference, another path, a cache.

Each is a subject and what `check` is told of it. The first matrix of its picture is that of the
reference, of the plain call, or of the whole pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import intently as it

Subject = tuple[Callable[..., Any], dict[str, Any]]
CAUSAL = it.causal()
SINKS = torch.tensor([0.5, 1.0, 0.0, 1.5], dtype=torch.double)
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=torch.double)[:, None, None]


def attend(**options: Any) -> Callable[..., Tensor]:
    """Causal attention with some of the options of `it.attention`."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return it.attention(q, k, v, **{"mask": CAUSAL, **options})

    return attention


def rotated(base: float = 100.0, pairs: bool = False) -> Callable[..., Tensor]:
    """Causal attention with rotary positions, in halves or in pairs."""

    def turned(x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[-2])[:, None] * base ** (-torch.arange(0, 8, 2) / 8)
        cos, sin = angle.to(x.dtype).cos(), angle.to(x.dtype).sin()
        a, b = (x[..., ::2], x[..., 1::2]) if pairs else x.chunk(2, -1)
        parts = a * cos - b * sin, b * cos + a * sin
        return torch.stack(parts, -1).flatten(-2) if pairs else torch.cat(parts, -1)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return it.attention(turned(q), turned(k), v, mask=CAUSAL)

    return attention


def distances(t: int, s: int) -> Tensor:
    """How far each key lies before each query."""
    return (torch.arange(t)[:, None] + s - t - torch.arange(s)).double()


class Fused(nn.Module):
    """A causal layer with a fused projection, which is read in an order."""

    def __init__(self, sizes: tuple[int, ...] = (3, 4, 8), order: str = "xhd") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.sizes, self.axes = sizes, [2 + order.index(c) for c in "xhd"]

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(-1, self.sizes)
        q, k, v = parts.permute(self.axes[0], 0, self.axes[1], 1, self.axes[2])
        return self.out(it.attention(q, k, v, mask=CAUSAL).transpose(1, 2).flatten(2))


class Exchanged(Fused):
    """The same with keys in place of queries."""

    def forward(self, x: Tensor) -> Tensor:
        k, q, v = self.qkv(x).unflatten(-1, self.sizes).permute(2, 0, 3, 1, 4)
        return self.out(it.attention(q, k, v, mask=CAUSAL).transpose(1, 2).flatten(2))


def appended(past: Tensor, new: Tensor) -> Tensor:
    """The keys of a cache, and then those of a step."""
    return torch.cat([past, new], 2)


class Cached(nn.Module):
    """A causal layer with a cache: how it joins keys, what is hidden and added in a step."""

    def __init__(
        self,
        join: Callable[[Tensor, Tensor], Tensor] = appended,
        seen: Callable[[Tensor], Tensor] = lambda distance: distance >= 0,
        added: Callable[[int, int], Tensor] = lambda t, s: torch.zeros(1),
        first: Callable[[Tensor], Tensor] = lambda distance: distance >= 0,
        turns: int = 0,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.join, self.seen, self.added, self.first = join, seen, added, first
        self.turns = turns

    def forward(self, x: Tensor, past: Any = None) -> tuple[Tensor, Any]:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        n = 0 if past is None else past[0].shape[2]
        if self.turns:
            at = torch.arange(n, n + x.shape[1])
            q, k = (it.Rotary(8)(y, positions=at) for y in (q, k))
        if past is not None:
            old = past[0]
            for _ in range(self.turns - 1):
                old = it.Rotary(8)(old, positions=torch.arange(n))
            k, v = self.join(old, k), self.join(past[1], v)
        t, s = q.shape[2], k.shape[2]
        z = q @ k.mT * 8**-0.5 + self.added(t, s).to(q.dtype)
        seen = self.first if past is None else self.seen
        w = z.masked_fill(~seen(distances(t, s)), -torch.inf).softmax(-1).nan_to_num(0.0)
        self.weights = w.detach()
        return self.out((w @ v).transpose(1, 2).flatten(2)), (k, v)

    def whole(self) -> Cached:
        """The same without a mistake in steps."""

        def added(t: int, s: int) -> Tensor:
            return (self.added(s, s) + torch.zeros(s, s))[..., s - t :, :]

        return Cached(seen=self.first, added=added, first=self.first, turns=min(self.turns, 1))


class Block(nn.Module):
    """What holds a layer, as models do."""

    def __init__(self, attention: Cached) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, past: Any = None) -> tuple[Tensor, Any]:
        return self.attention(x, past)


def in_steps(layer: Cached, pieces: tuple[int, ...] = (3, 3)) -> Tensor:
    """The weights (b, h, t, s) of a text in pieces, by positions."""
    draw = torch.Generator().manual_seed(2)
    x, past, rows = torch.randn(1, sum(pieces), 32, generator=draw), None, []
    held = torch.empty(1, 1, 0, 1).long()
    for piece, at in zip(x.split(pieces, 1), torch.arange(x.shape[1]).split(pieces)):
        new = at[None, None, :, None]
        held = layer.join(held, new) if past is not None else new
        past = layer(piece, past)[1]
        row = torch.zeros(*layer.weights.shape[:3], x.shape[1])
        rows.append(row.index_copy(3, held.flatten(), layer.weights))
    return torch.cat(rows, 2)


def only_slow(**options: Any) -> Subject:
    """Attention that leaves out some options where it is to be fast."""

    def attention(q: Tensor, k: Tensor, v: Tensor, fast: bool = False) -> Tensor:
        given = {} if fast else options
        return it.attention(q, k, v, **{**({} if "mask" in options else {"mask": CAUSAL}), **given})

    return attention, {"mask": CAUSAL, "same": [{"fast": True}]}


def in_a_block(*join: Any, **options: Any) -> Subject:
    """A causal block whose layer has a cache."""
    return Block(Cached(*join, **options)), {"mask": CAUSAL}


def unlike(mine: Callable[..., Any], theirs: Callable[..., Any]) -> Subject:
    """One that differs from its reference."""
    return mine, {"mask": CAUSAL, "like": theirs}


def alibi(factor: Tensor | float = 1.0) -> Callable[..., Tensor]:
    """Causal attention with a bias by distance."""
    return attend(bias=-SLOPES * factor * distances(6, 6))


def near(distance: Tensor) -> Tensor:
    """A causal window of four keys."""
    return (distance >= 0) & (distance < 4)


OTHERS = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.double)[:, None, None]
SHOWN: dict[str, Subject] = {
    "other-scale": unlike(attend(scale=0.1), attend()),
    "sinks-missing": unlike(attend(), attend(sinks=SINKS)),
    "softcap-missing": unlike(attend(), attend(softcap=1.0)),
    "softcap-other": unlike(attend(softcap=2.0), attend(softcap=0.5)),
    "sinks-other": unlike(attend(sinks=SINKS.flip(0)), attend(sinks=SINKS)),
    "rotation-missing": unlike(attend(), rotated()),
    "rotary-pairs": unlike(rotated(pairs=True), rotated()),
    "rotary-base": unlike(rotated(base=3.0), rotated()),
    "bias-scaled": unlike(alibi(3.0), alibi()),
    "bias-slopes": unlike(alibi(OTHERS), alibi()),
    "layout-of-fused-rows": unlike(Fused((4, 3, 8), "hxd"), Fused()),
    "heads-interleaved": unlike(Fused((3, 8, 4), "xdh"), Fused()),
    "projections-exchanged": unlike(Exchanged(), Fused()),
    "mask-in-one-path": only_slow(mask=CAUSAL),
    "softcap-in-one-path": only_slow(softcap=1.0),
    "sinks-in-one-path": only_slow(sinks=SINKS),
    "bias-in-one-path": only_slow(bias=-SLOPES * distances(6, 6)),
    "cache-overwritten": in_a_block(lambda past, new: appended(past[:, :, -2:], new)),
    "cache-prepended": in_a_block(lambda past, new: appended(new, past)),
    "cache-rotated-twice": in_a_block(turns=2),
    "cache-rolled-early": (
        Block(Cached(lambda past, new: appended(past[:, :, -2:], new), near, first=near)),
        {"mask": CAUSAL & it.window(3, 0)},
    ),
    "mask-in-cache": in_a_block(seen=lambda distance: distance > -torch.inf),
    "bias-offset-lost": in_a_block(added=lambda t, s: -SLOPES * (distances(t, s) - (s - t)).abs()),
}
"""By name in the catalogue, a program that makes this mistake, and what is asked of it."""
