"""PyTorch's own layers as people use them, and Intently's, subclassed, wrapped and patched."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import intently as it
from benchmarks.checking.planted.base import Base, slip
from benchmarks.checking.planted.cached import cached_ask, cached_cases
from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.functions import padding
from benchmarks.checking.planted.modules import x_ask, x_cases
from benchmarks.checking.planted.observing import Case
from intently.nn import AttentionOptions, KeyValueCache, MultiHeadAttention, Projections

# ruff: noqa: D101 - the modules are read as the code of people who write no docstrings


# --- self-attention with a mask of the user's ---------------------------------------------------


class PaddedSelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mha = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)

    def forward(self, x, keep=None, need_weights=False):
        y = self.norm(x)
        pads = None if keep is None else keep.logical_not()
        y, _ = self.mha(y, y, y, key_padding_mask=pads, need_weights=need_weights)
        return x + y


def _kept(draw: Draw, b: int, t: int, **others: Any) -> dict[str, Any]:
    return {"x": draw.tensor(f"x{b}{t}", b, t, draw.c), "keep": ~padding(draw, b, t), **others}


def _padded_cases(draw: Draw) -> list[Case]:
    b, t = draw.b, draw.t
    return [
        *x_cases(draw),
        Case("padded", _kept(draw, b, t)),
        Case("padded, weights", _kept(draw, b, draw.s, need_weights=True)),
        Case("padded, training", _kept(draw, b, t), train=True),
    ]


PADDED_LAYER = Base(
    "nn.MultiheadAttention with padding",
    (PaddedSelfAttention,),
    lambda names, draw: draw.trained(names["PaddedSelfAttention"](draw.c, draw.h)),
    lambda draw: {
        "inputs": _kept(draw, draw.b, draw.t),
        "arguments": {"keep": "attend"},
        "same": [{"need_weights": False}, {"need_weights": True}],
    },
    _padded_cases,
    (
        slip("mask-inverted", "keep.logical_not()", "keep"),
        slip("batch-and-sequence-exchanged", ", batch_first=True", "",
             "key_padding_mask=pads", "key_padding_mask=None if pads is None else pads.mT"),
        slip("batch-and-sequence-exchanged", ", batch_first=True", "",
             "key_padding_mask=pads, ", "", label="no padding"),
        slip("padding-attended", "key_padding_mask=pads, ", ""),
        slip("mask-dropped-with-weights", "key_padding_mask=pads",
             "key_padding_mask=None if need_weights else pads"),
        slip("mask-dropped-with-dropout", "key_padding_mask=pads",
             "key_padding_mask=None if self.training else pads"),
        slip("mask-in-one-back-end", "key_padding_mask=pads",
             "key_padding_mask=pads if need_weights else None"),
        slip("mask-too-weak", "keep.logical_not()", "1.0 - keep.to(x.dtype)", label="1, added",),
        slip("mask-batch-rows", "keep.logical_not()", "keep.logical_not().roll(1, 0)"),
        slip("lengths-off-by-one", "keep.logical_not()",
             "keep.logical_not().roll(1, 1) & keep.logical_not()"),
        slip("gradient-cut", "self.mha(y, y, y,", "self.mha(y, y.detach(), y,"),
        slip("scaled-twice", "self.mha(y, y, y,", "self.mha(y * self.mha.head_dim**-0.5, y, y,"),
        slip("dropout-in-eval", "return x + y",
             "return x + nn.functional.dropout(y, 0.1)"),
    ),
)  # fmt: skip


# --- causal self-attention ----------------------------------------------------------------------


class CausalLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x, need_weights=True):
        t = x.shape[1]
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
        y = self.attn(x, x, x, attn_mask=mask, need_weights=need_weights)[0]
        return y


def _weights_cases(draw: Draw) -> list[Case]:
    found = x_cases(draw)
    bare = (Case(f"{x.name} bare", {**x.inputs, "need_weights": False}) for x in found)
    return [*found, *bare]


CAUSAL_LAYER = Base(
    "nn.MultiheadAttention, causal",
    (CausalLayer,),
    lambda names, draw: draw.trained(names["CausalLayer"](draw.c, draw.h)),
    lambda draw: {
        **x_ask(draw, it.causal()),
        "same": [{"need_weights": True}, {"need_weights": False}],
    },
    _weights_cases,
    (
        slip("mask-inverted", "torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)",
             "torch.tril(torch.ones(t, t, dtype=torch.bool))"),
        slip("mask-behind-by-one", "torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)",
             "torch.triu(torch.ones(t, t, dtype=torch.bool))\n        mask[0, 0] = False"),
        slip("mask-ahead-by-one", "diagonal=1", "diagonal=2"),
        slip("mask-transposed", "diagonal=1)", "diagonal=1).mT"),
        slip("mask-missing", "attn_mask=mask, ", ""),
        slip("mask-too-weak", "diagonal=1)\n", "diagonal=1)\n        mask = -1.0 * mask\n"),
        slip("mask-added-as-number", "diagonal=1)\n", "diagonal=1)\n        mask = mask.to(x)\n"),
        slip("mask-dropped-with-weights", "attn_mask=mask",
             "attn_mask=None if need_weights else mask"),
        slip("mask-in-one-back-end", "attn_mask=mask",
             "attn_mask=mask if need_weights else None"),
        slip("batch-and-sequence-exchanged", ", batch_first=True", "",
             "t = x.shape[1]", "t = x.shape[0]"),
        slip("gradient-cut", "self.attn(x, x, x", "self.attn(x, x, x.detach()"),
        slip("leak-by-norm", "        t = x.shape[1]\n",
             "        t = x.shape[1]\n        x = x / x.norm(dim=1, keepdim=True)\n"),
        slip("leak-by-mean", "self.attn(x, x, x,", "self.attn(x, x, x - x.mean(1, True),"),
    ),
)  # fmt: skip


# --- a layer of a decoder: causal, and across to a padded memory --------------------------------


class DecoderBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(
            width, heads, dim_feedforward=2 * width, batch_first=True, norm_first=True
        )

    def forward(self, tgt, memory, memory_pad=None):
        future = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1], dtype=tgt.dtype)
        return self.layer(tgt, memory, tgt_mask=future, memory_key_padding_mask=memory_pad)


def _across(draw: Draw, b: int, t: int, s: int, padded: bool = True) -> dict[str, Any]:
    found = {
        "tgt": draw.tensor(f"tgt{b}{t}", b, t, draw.c),
        "memory": draw.tensor(f"memory{b}{s}", b, s, draw.c),
    }
    return {**found, "memory_pad": padding(draw, b, s)} if padded else found


def _across_cases(draw: Draw) -> list[Case]:
    b, t, s = draw.b, draw.t, draw.s
    return [
        Case("bare", _across(draw, b, t, s, padded=False)),
        Case("padded", _across(draw, b, t, s)),
        Case("square", _across(draw, b, t, t)),
        Case("training", _across(draw, b, t, s), train=True),
    ]


DECODER_LAYER = Base(
    "nn.TransformerDecoderLayer",
    (DecoderBlock,),
    lambda names, draw: draw.trained(names["DecoderBlock"](draw.c, draw.h)),
    lambda draw: {
        "inputs": _across(draw, draw.b, draw.t, draw.s),
        "arguments": {"memory_pad": "ignore"},
        "mask": it.causal(),
    },
    _across_cases,
    (
        slip("padding-attended-in-cross", ", memory_key_padding_mask=memory_pad", ""),
        slip("mask-missing", "tgt_mask=future, ", ""),
        slip("mask-inverted", "memory_key_padding_mask=memory_pad",
             "memory_key_padding_mask=None if memory_pad is None else ~memory_pad"),
        slip("mask-transposed", "tgt_mask=future", "tgt_mask=future.mT"),
        slip("mask-too-weak", "tgt_mask=future", "tgt_mask=future.clamp(min=-1.0)"),
        slip("cross-ignores-context", "self.layer(tgt, memory,", "self.layer(tgt, tgt,",
             ", memory_key_padding_mask=memory_pad", ""),
        slip("mask-ahead-by-one", "tgt_mask=future", "tgt_mask=future.triu(2)"
             ".nan_to_num(0.0, neginf=-torch.inf)"),
        slip("gradient-cut", "self.layer(tgt, memory,", "self.layer(tgt, memory.detach(),"),
        slip("gradient-scaled", "self.layer(tgt, memory,",
             "self.layer(tgt, 0.5 * memory + 0.5 * memory.detach(),"),
        slip("mask-batch-rows", "memory_key_padding_mask=memory_pad", "memory_key_padding_mask="
             "None if memory_pad is None else memory_pad[:1].expand_as(memory_pad)"),
        slip("leak-by-mean", "self.layer(tgt, memory",
             "self.layer(tgt - tgt.mean(1, True), memory"),
    ),
)  # fmt: skip


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
