"""Small models: a GPT with a cache, and an encoder and decoder with a padded source."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import intently as it
from benchmarks.checking.planted.base import Base, slip
from benchmarks.checking.planted.cached import RotaryAttention, rotate
from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.observing import Case

# ruff: noqa: D101 - the bases are the code of people who write no docstrings

VOCABULARY = 20


class GPT(nn.Module):
    def __init__(self, vocabulary, width, heads, kv_heads):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(32, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.blocks = nn.ModuleList(RotaryAttention(width, heads, kv_heads) for _ in range(2))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids, attention_mask=None, past=None):
        start = 0 if past is None else past[0][0].shape[-2]
        positions = torch.arange(start, start + ids.shape[1])[None]
        if attention_mask is not None:
            positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)[:, start:]
        x, new = self.wte(ids) + self.wpe(positions), []
        for i, block in enumerate(self.blocks):
            y, kv = block(self.norms[i](x), None if past is None else past[i], attention_mask)
            x, new = x + y, [*new, kv]
        return self.head(x), new


def _left(draw: Draw) -> dict[str, Any]:
    """Ids padded on the left, and which of them count."""
    keep = draw.padding(draw.b, draw.t).flip(1).logical_not()
    ids = draw.ids("ids", VOCABULARY, draw.b, draw.t)
    return {"ids": ids * keep, "attention_mask": keep.long()}


def _gpt_cases(draw: Draw) -> list[Case]:
    t, left = draw.t, _left(draw)
    whole = {"ids": draw.ids("ids", VOCABULARY, draw.b, t)}
    found = [Case("whole", whole), Case("left padding", left), Case("training", whole, train=True)]
    for name, given in (("whole", whole), ("left padding", left)):
        covers = ("attention_mask",) if given is left else ()
        for n in ((1,) * t, (3, 2, t - 5)):
            found.append(Case(f"{name} {n}", given, steps=n, along="ids", covers=covers))
    return found


GPT_MODEL = Base(
    "GPT with a cache",
    (rotate, RotaryAttention, GPT),
    lambda names, draw: draw.trained(names["GPT"](VOCABULARY, draw.c, draw.h, draw.g)),
    lambda draw: {
        "inputs": _left(draw), "arguments": {"attention_mask": "attend", "past": "past"},
        "mask": it.causal(),
    },
    _gpt_cases,
    (
        slip("left-padding-positions", "(attention_mask.cumsum(-1) - 1).clamp(min=0)[:, start:]",
             "torch.arange(attention_mask.shape[1])[None, start:]"),
        slip("position-offset-lost", "torch.arange(start, start + ids.shape[1])",
             "torch.arange(ids.shape[1])"),
        slip("cache-layers-exchanged", "past[i],", "past[-1 - i],"),
    ),
    constants=lambda draw: {"RATE": 10_000.0},
)  # fmt: skip


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
        self.mix = nn.Conv1d(width, width, 3, groups=width)
        self.generator = nn.Linear(width, vocabulary)

    def embedded(self, ids):
        return self.embed(ids) + self.places(torch.arange(ids.shape[1]))

    def forward(self, source, target, source_lengths):
        real = torch.arange(source.shape[1]) < source_lengths[:, None]
        m = self.norms[0](self.embedded(source))
        memory = m + self.encode(m, m, real[:, None, None, :])
        memory = self.norms[1](memory)
        x = self.norms[2](self.embedded(target))
        x = x + self.mix(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        t = target.shape[1]
        causal = torch.ones(t, t, dtype=torch.bool).tril()
        x = x + self.decode(x, x, causal)
        x = x + self.cross(self.norms[3](x), memory, real[:, None, None, :])
        return self.generator(x)


def _texts(draw: Draw, b: int, t: int, s: int) -> dict[str, Any]:
    source, target = draw.ids("source", VOCABULARY, b, s), draw.ids("target", VOCABULARY, b, t)
    source = source * ~draw.padding(b, s)
    return {"source": source, "target": target, "source_lengths": draw.lengths(b, s)}


def _texts_cases(draw: Draw) -> list[Case]:
    b, t, s = draw.b, draw.t, draw.s
    found = [Case(f"{n}", _texts(draw, *n)) for n in ((b, t, s), (b, t, t), (b, s, t), (1, t, s))]
    return [*found, Case("training", found[0].inputs, train=True)]


ENCODER_DECODER = Base(
    "encoder and decoder",
    (Attention, EncoderDecoder),
    lambda names, draw: draw.trained(names["EncoderDecoder"](VOCABULARY, draw.c, draw.h)),
    lambda draw: {
        "inputs": _texts(draw, draw.b, draw.t, draw.s), "mask": it.causal(),
        "arguments": {"source_lengths": "lengths"},
    },
    _texts_cases,
    (
        slip("leak-by-convolution", "(2, 0))", "(1, 1))"),
        slip("padding-attended-in-cross", "memory, real[:, None, None, :])", "memory, None)"),
        slip("lengths-off-by-one", "< source_lengths[:, None]", "<= source_lengths[:, None]"),
        slip("cross-ignores-context", "self.norms[3](x), memory, real[:, None, None, :])",
             "self.norms[3](x), self.norms[3](x), causal)"),
    ),
)  # fmt: skip
