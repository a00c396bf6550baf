"""Small models: a GPT with a cache, and an encoder and decoder with a padded source."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import intently as it
from benchmarks.checking.planted.base import Base, slip
from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.observing import Case

# ruff: noqa: D101 - the models are read as the code of people who write no docstrings

VOCABULARY = 20


# --- a language model ---------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.drop = nn.Dropout(0.1)

    def forward(self, x, keep, past=None):
        b, t, c = x.shape
        y = self.ln_1(x)
        q, k, v = self.c_attn(y).split(c, dim=-1)
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in (q, k, v))
        if past is not None:
            k = torch.cat((past[0], k), dim=-2)
            v = torch.cat((past[1], v), dim=-2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(v.size(-1))
        s = k.size(-2)
        allowed = torch.tril(torch.ones(s, s, dtype=torch.bool))[s - t : s, :s]
        if keep is not None:
            allowed = allowed & keep[:, None, None, :].bool()
        scores = scores.masked_fill(~allowed, float("-inf"))
        weights = self.drop(scores.softmax(dim=-1).nan_to_num(0.0))
        y = torch.matmul(weights, v).transpose(1, 2).reshape(b, t, c)
        x = x + self.c_proj(y)
        return x + self.mlp(self.ln_2(x)), (k, v)


class GPT(nn.Module):
    def __init__(self, vocabulary, width, heads, layers):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids, attention_mask=None, past=None):
        t = ids.shape[1]
        start = 0 if past is None else past[0][0].shape[-2]
        positions = torch.arange(start, start + t)[None]
        if attention_mask is not None:
            positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)[:, start:]
        x = self.wte(ids) + self.wpe(positions)
        new = []
        for i, block in enumerate(self.blocks):
            x, kv = block(x, attention_mask, None if past is None else past[i])
            new.append(kv)
        return self.head(self.ln_f(x)), new


def _ids(draw: Draw, b: int, t: int) -> dict[str, Any]:
    return {"ids": draw.ids(f"ids{b}{t}", VOCABULARY, b, t)}


def _left(draw: Draw, b: int, t: int) -> dict[str, Any]:
    """Ids padded on the left, and which of them count."""
    keep = torch.arange(t) >= (t - draw.lengths(b, t))[:, None]
    return {"ids": _ids(draw, b, t)["ids"] * keep, "attention_mask": keep.long()}


def _gpt_cases(draw: Draw) -> list[Case]:
    b, t = draw.b, draw.t
    whole, left = _ids(draw, b, t), _left(draw, b, t)
    pieces = {"steps": (1,) * t, "pieces": (3, 2, t - 5)}
    return [
        Case("whole", whole),
        Case("one item", _ids(draw, 1, draw.s)),
        Case("training", whole, train=True),
        Case("left padding", left),
        *(Case(name, whole, steps=n, along="ids") for name, n in pieces.items()),
        *(
            Case(f"left padding, {name}", left, steps=n, along="ids", covers=("attention_mask",))
            for name, n in pieces.items()
        ),
    ]


GPT_MODEL = Base(
    "GPT with a cache",
    (Block, GPT),
    lambda names, draw: draw.trained(
        names["GPT"](VOCABULARY, draw.c, draw.h, draw.one_of("layers", 2, 3))
    ),
    lambda draw: {
        "inputs": _left(draw, draw.b, draw.t),
        "arguments": {"attention_mask": "attend", "past": "past"},
        "mask": it.causal(),
    },
    _gpt_cases,
    (
        slip("left-padding-positions",
             "positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)[:, start:]",
             "positions = torch.arange(attention_mask.shape[1])[None, start:]"),
        slip("position-offset-lost", "torch.arange(start, start + t)[None]",
             "torch.arange(t)[None]"),
        slip("position-offset-lost", "[:, start:]", "[:, :t]", label="padded"),
        slip("padding-attended", "            allowed = allowed & keep",
             "            _ = allowed & keep"),
        slip("mask-inverted", "keep[:, None, None, :].bool()", "(keep[:, None, None, :] == 0)"),
        slip("mask-on-query-axis", "keep[:, None, None, :].bool()",
             "keep[:, None, s - t :, None].bool()"),
        slip("mask-top-left", "[s - t : s, :s]", "[:t, :s]"),
        slip("mask-ahead-by-one", "torch.tril(torch.ones(s, s, dtype=torch.bool))",
             "torch.tril(torch.ones(s, s, dtype=torch.bool), 1)"),
        slip("mask-in-cache", "torch.tril(torch.ones(s, s, dtype=torch.bool))",
             "torch.ones(s, s, dtype=torch.bool).tril(0 if past is None else s)"),
        slip("mask-too-weak", 'float("-inf")', "-1.0"),
        slip("scale-by-width", "math.sqrt(v.size(-1))", "math.sqrt(c)"),
        slip("no-scale", " / math.sqrt(v.size(-1))", ""),
        slip("cache-overwritten", "k = torch.cat((past[0], k), dim=-2)",
             "k = torch.cat((past[0][..., 1:, :], k, k[..., -1:, :]), dim=-2)"),
        slip("cache-rows-exchanged", "v = torch.cat((past[1], v), dim=-2)",
             "v = torch.cat((past[1].roll(1, 0), v), dim=-2)"),
        slip("cache-layers-exchanged", "past[i])", "past[-1 - i])"),
        slip("cache-prepended", "torch.cat((past[0], k), dim=-2)",
             "torch.cat((k, past[0]), dim=-2)"),
        slip("heads-split-by-reshape", "z.view(b, t, self.heads, -1).transpose(1, 2)",
             "z.reshape(b, self.heads, t, -1)"),
        slip("heads-merged-by-reshape", "v).transpose(1, 2).reshape(b, t, c)",
             "v).reshape(b, t, c)"),
        slip("dropout-twice", "self.drop(scores.softmax(dim=-1).nan_to_num(0.0))",
             "self.drop(self.drop(scores.softmax(dim=-1).nan_to_num(0.0)))"),
        slip("leak-by-norm", "self.ln_2(x)), (k, v)",
             "self.ln_2(x - x.mean(1, keepdim=True))), (k, v)"),
        slip("gradient-cut", "x = x + self.c_proj(y)", "x = x + self.c_proj(y.detach())"),
        slip("softmax-over-heads", "softmax(dim=-1)", "softmax(dim=1)"),
    ),
)  # fmt: skip


# --- encoder and decoder ------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, memory, allowed):
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(memory).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.out(y.transpose(1, 2).flatten(2))


class EncoderDecoder(nn.Module):
    def __init__(self, vocabulary, width, heads):
        super().__init__()
        self.embed, self.places = nn.Embedding(vocabulary, width), nn.Embedding(32, width)
        self.encode, self.decode = Attention(width, heads), Attention(width, heads)
        self.cross = Attention(width, heads)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.generator = nn.Linear(width, vocabulary)

    def embedded(self, ids):
        return self.embed(ids) + self.places(torch.arange(ids.shape[1]))

    def forward(self, source, target, source_lengths):
        real = torch.arange(source.shape[1]) < source_lengths[:, None]
        m = self.norms[0](self.embedded(source))
        memory = m + self.encode(m, m, real[:, None, None, :])
        memory = self.norms[1](memory)
        x = self.norms[2](self.embedded(target))
        t = target.shape[1]
        causal = torch.ones(t, t, dtype=torch.bool).tril()
        x = x + self.decode(x, x, causal)
        x = x + self.cross(self.norms[3](x), memory, real[:, None, None, :])
        return self.generator(x)


def _texts(draw: Draw, b: int, t: int, s: int) -> dict[str, Any]:
    lengths = draw.lengths(b, s)
    real = torch.arange(s) < lengths[:, None]
    return {
        "source": draw.ids(f"source{b}{s}", VOCABULARY, b, s) * real,
        "target": draw.ids(f"target{b}{t}", VOCABULARY, b, t),
        "source_lengths": lengths,
    }


def _texts_cases(draw: Draw) -> list[Case]:
    b, t, s = draw.b, draw.t, draw.s
    shapes = {
        "padded": (b, t, s),
        "square": (b, t, t),
        "longer target": (b, s, t),
        "one": (1, t, s),
    }
    return [
        *(Case(name, _texts(draw, *n)) for name, n in shapes.items()),
        Case("training", _texts(draw, b, t, s), train=True),
    ]


ENCODER_DECODER = Base(
    "encoder and decoder",
    (Attention, EncoderDecoder),
    lambda names, draw: draw.trained(names["EncoderDecoder"](VOCABULARY, draw.c, draw.h)),
    lambda draw: {
        "inputs": _texts(draw, draw.b, draw.t, draw.s),
        "arguments": {"source_lengths": "lengths"},
        "mask": it.causal(),
    },
    _texts_cases,
    (
        slip("padding-attended", "self.encode(m, m, real[:, None, None, :])",
             "self.encode(m, m, None)"),
        slip("padding-attended-in-cross", "memory, real[:, None, None, :])", "memory, None)"),
        slip("lengths-off-by-one", "< source_lengths[:, None]", "<= source_lengths[:, None]"),
        slip("lengths-off-by-one", "< source_lengths[:, None]", "< source_lengths[:, None] - 1",
             label="one less"),
        slip("mask-missing", "self.decode(x, x, causal)", "self.decode(x, x, None)"),
        slip("mask-ahead-by-one", ".tril()", ".tril(1)"),
        slip("mask-transposed", ".tril()", ".triu()"),
        slip("mask-inverted", "self.encode(m, m, real", "self.encode(m, m, ~real"),
        slip("cross-ignores-context", "self.norms[3](x), memory, real[:, None, None, :])",
             "self.norms[3](x), self.norms[3](x), causal)"),
        slip("mask-added-as-number", "attn_mask=allowed", "attn_mask=allowed.to(q.dtype)"),
        slip("mask-batch-rows", "memory, real[:", "memory, real.roll(1, 0)[:"),
        slip("values-are-keys", "attention(q, k, v", "attention(q, k, k"),
        slip("heads-interleaved", "(2, self.heads, -1)).permute(2, 0, 3, 1, 4)",
             "(2, -1, self.heads)).permute(2, 0, 4, 1, 3)"),
        slip("scaled-twice", "attention(q, k, v", "attention(q * q.shape[-1] ** -0.5, k, v"),
        slip("gradient-cut", "memory = self.norms[1](memory)",
             "memory = self.norms[1](memory).detach()"),
        slip("leak-by-mean", "self.norms[2](self.embedded(target))",
             "self.norms[2](self.embedded(target))\n        x = x - x.mean(dim=1, keepdim=True)"),
        slip("leak-by-norm", "self.norms[2](self.embedded(target))",
             "F.layer_norm(self.embedded(target), target.shape[1:] + self.embed.weight.shape[1:])"),
    ),
)  # fmt: skip
