"""Intently's own modules, subclassed, wrapped and patched."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import intently as it
from benchmarks.checking.planted.base import Base, slip
from benchmarks.checking.planted.cached import cached_ask, cached_cases
from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.modules import x_ask, x_cases
from benchmarks.checking.planted.observing import Case
from intently.nn import AttentionOptions, KeyValueCache, MultiHeadAttention, Projections

# ruff: noqa: D101 - the modules are read as the code of people who write no docstrings

NAMES = {
    "AttentionOptions": AttentionOptions,
    "KeyValueCache": KeyValueCache,
    "MultiHeadAttention": MultiHeadAttention,
    "Projections": Projections,
}


# --- rotary, with a cache -----------------------------------------------------------------------


class CachedBlock(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        options = AttentionOptions(mask=it.causal(), positions=it.Rotary(width // heads))
        self.norm = nn.RMSNorm(width)
        self.attention = MultiHeadAttention(width, heads, kv_heads=kv_heads, attention=options)

    def forward(self, x, cached=False):
        y = self.norm(x)
        if not cached:
            return x + self.attention(y)
        cache = KeyValueCache()
        parts = [self.attention(part, cache=cache) for part in y.split(2, dim=1)]
        return x + torch.cat(parts, dim=1)


CACHED_BLOCK = Base(
    "intently block with a cache",
    (CachedBlock,),
    lambda names, draw: draw.trained(names["CachedBlock"](draw.c, draw.h, draw.g)),
    lambda draw: cached_ask(draw, it.causal()),
    cached_cases,
    (
        slip("mask-missing", "mask=it.causal(), ", ""),
        slip("mask-top-left", "it.causal()", "it.causal(offset=0)"),
        slip("mask-ahead-by-one", "it.causal()", "it.window(1000, 1)"),
        slip("mask-inverted", "it.causal()", "~it.causal() | it.window(0, 0)"),
        slip("no-scale", "mask=it.causal()", "mask=it.causal(), scale=1.0"),
        slip("scale-by-width", "mask=it.causal()", "mask=it.causal(), scale=width**-0.5"),
        slip("scale-by-d", "mask=it.causal()", "mask=it.causal(), scale=heads / width"),
        slip("cache-overwritten", "self.attention(part, cache=cache)",
             "self.attention(part, cache=KeyValueCache())"),
        slip("state-left", "        cache = KeyValueCache()\n",
             "        self.cache = cache = getattr(self, 'cache', None) or KeyValueCache()\n"),
        slip("gradient-cut", "x + self.attention(y)", "x + self.attention(y.detach())"),
        slip("leak-by-norm", "y = self.norm(x)", "y = self.norm(F.normalize(x, dim=1))"),
        slip("leak-by-mean", "y = self.norm(x)", "y = self.norm(x) - x.mean(dim=1, keepdim=True)"),
    ),
    constants=lambda draw: NAMES,
)  # fmt: skip


# --- a subclass that pads -----------------------------------------------------------------------


class Padded(MultiHeadAttention):
    def forward(self, x, context=None, lengths=None):
        mask = None if lengths is None else it.padding(lengths)
        return super().forward(x, context, mask=mask)


def _lengths(draw: Draw, b: int, t: int, s: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"x": draw.tensor(f"x{b}{t}", b, t, draw.c)}
    if s is not None:
        found["context"] = draw.tensor(f"context{b}{s}", b, s, draw.c)
    return {**found, "lengths": draw.lengths(b, s or t)}


def _lengths_cases(draw: Draw) -> list[Case]:
    b, t, s = draw.b, draw.t, draw.s
    return [
        *x_cases(draw),
        Case("padded", _lengths(draw, b, t)),
        Case("padded context", _lengths(draw, b, t, s)),
        Case("padded, training", _lengths(draw, b, t), train=True),
    ]


PADDED = Base(
    "intently subclass with lengths",
    (Padded,),
    lambda names, draw: draw.trained(names["Padded"](draw.c, draw.h)),
    lambda draw: {
        "inputs": _lengths(draw, draw.b, draw.t, draw.t),
        "arguments": {"lengths": "lengths"},
        "mask": it.padding(draw.lengths(draw.b, draw.t)),
    },
    _lengths_cases,
    (
        slip("lengths-off-by-one", "it.padding(lengths)", "it.padding(lengths - 1)"),
        slip("lengths-off-by-one", "it.padding(lengths)",
             "it.padding((lengths + 1).clamp(max=lengths.max()))", label="one more"),
        slip("mask-inverted", "it.padding(lengths)", "~it.padding(lengths)"),
        slip("mask-batch-rows", "it.padding(lengths)", "it.padding(lengths.flip(0))"),
        slip("padding-attended-in-cross", "if lengths is None",
             "if lengths is None or context is not None"),
        slip("padding-attended", "if lengths is None", "if lengths is None or context is None"),
        slip("cross-ignores-context", "super().forward(x, context, mask=mask)",
             "super().forward(x, None, mask=mask if context is None else None)"),
        slip("scaled-twice", "        return super()", "        x = x / self.d**0.5\n"
             "        return super()"),
        slip("gradient-cut", "super().forward(x, context",
             "super().forward(x, None if context is None else context.detach()"),
        slip("mask-dropped-with-dropout", "if lengths is None",
             "if lengths is None or self.training"),
        slip("dropout-in-eval", "return super().forward(x, context, mask=mask)",
             "return nn.functional.dropout(super().forward(x, context, mask=mask), 0.1)"),
    ),
    constants=lambda draw: NAMES,
)  # fmt: skip


# --- a patched forward: its own maps around `attend` --------------------------------------------


class Patched(nn.Module):
    def __init__(self, width, heads, window):
        super().__init__()
        self.heads, self.mask = heads, it.causal() & it.window(window - 1, 0)
        self.inner = MultiHeadAttention(width, heads, projections=Projections(fused=False))

    def forward(self, x):
        m = self.inner
        q = nn.functional.linear(x, m.q_weight, m.q_bias)
        k = nn.functional.linear(x, m.k_weight, m.k_bias)
        v = nn.functional.linear(x, m.v_weight, m.v_bias)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        y = it.attention(q, k, v, mask=self.mask)
        return nn.functional.linear(y.transpose(1, 2).flatten(2), m.out_weight, m.out_bias)


def _whole(draw: Draw) -> Any:
    """Intently's own layer with the weights that the patched one holds."""
    mask = it.causal() & it.window(draw.window - 1, 0)
    options = {"attention": AttentionOptions(mask=mask), "projections": Projections(fused=False)}
    holder = nn.Module()
    holder.inner = MultiHeadAttention(draw.c, draw.h, **options)
    return draw.trained(holder).inner


PATCHED = Base(
    "intently layer with a forward of its own",
    (Patched,),
    lambda names, draw: draw.trained(names["Patched"](draw.c, draw.h, draw.window)),
    lambda draw: {
        **x_ask(draw, it.causal() & it.window(draw.window - 1, 0)),
        "like": _whole(draw),
    },
    x_cases,
    (
        slip("projections-exchanged", "linear(x, m.q_weight, m.q_bias)",
             "linear(x, m.k_weight, m.k_bias)",
             "k = nn.functional.linear(x, m.k_weight, m.k_bias)",
             "k = nn.functional.linear(x, m.q_weight, m.q_bias)"),
        slip("projections-exchanged", "k = nn.functional.linear(x, m.k_weight, m.k_bias)",
             "k = nn.functional.linear(x, m.v_weight, m.v_bias)",
             "v = nn.functional.linear(x, m.v_weight, m.v_bias)",
             "v = nn.functional.linear(x, m.k_weight, m.k_bias)", label="k and v"),
        slip("weight-transposed", "m.v_weight", "m.v_weight.mT"),
        slip("weight-transposed", "m.out_weight", "m.out_weight.T", label="out"),
        slip("bias-missing", "linear(x, m.k_weight, m.k_bias)", "linear(x, m.k_weight)",
             label="keys"),
        slip("bias-missing", "linear(x, m.q_weight, m.q_bias)", "linear(x, m.q_weight)"),
        slip("bias-missing", "m.out_weight, m.out_bias", "m.out_weight", label="out"),
        slip("like-scale", "mask=self.mask)", "mask=self.mask, scale=0.5 * q.shape[-1] ** -0.5)"),
        slip("window-left-off-by-one", "window - 1, 0", "window, 0"),
        slip("mask-missing", "it.causal() & it.window(window - 1, 0)",
             "it.window(window - 1, 1000)"),
        slip("no-scale", "mask=self.mask)", "mask=self.mask, scale=1)"),
        slip("heads-interleaved", "y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for",
             "y.unflatten(-1, (-1, self.heads)).permute(0, 3, 1, 2) for"),
    ),
    constants=lambda draw: NAMES,
)  # fmt: skip
