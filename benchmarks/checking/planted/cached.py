"""Causal modules that go on from earlier steps: rotary with a past, ALiBi with a rolling window."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import intently as it
from benchmarks.checking.planted.base import Base, slip
from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.modules import x_ask, x_cases
from benchmarks.checking.planted.observing import Case
from intently.nn import AttentionOptions, MultiHeadAttention, Projections

# ruff: noqa: D101, D103 - the bases are the code of people who write no docstrings

RATE = 10000.0


def stepped(draw: Draw, cases: list[Case]) -> list[Case]:
    """The cases, and the first of them step by step, in pieces, and after a long beginning."""
    t = draw.t
    pieces = {"steps": (1,) * t, "pieces": (3, 2, t - 5), "beginning and steps": (t - 3, 1, 1, 1)}
    return [*cases, *(replace(cases[0], name=name, steps=n) for name, n in pieces.items())]


def rotate(x, positions):
    half = x.shape[-1] // 2
    rates = RATE ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = positions[:, None].to(x.dtype) * rates
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class RotaryAttention(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.wq, self.wo = nn.Linear(width, width), nn.Linear(width, width)
        self.wk = nn.Linear(width, kv_heads * self.head)
        self.wv = nn.Linear(width, kv_heads * self.head)

    def forward(self, x, past=None, keep=None):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.heads, self.head).transpose(1, 2)
        k = self.wk(x).view(b, t, self.kv_heads, self.head).transpose(1, 2)
        v = self.wv(x).view(b, t, self.kv_heads, self.head).transpose(1, 2)
        start = 0 if past is None else past[0].shape[2]
        positions = torch.arange(start, start + t)
        q, k = rotate(q, positions), rotate(k, positions)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        past = (k, v)
        keys = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        values = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        allowed = torch.ones(t, keys.shape[2], dtype=torch.bool).tril(keys.shape[2] - t)
        if keep is not None:
            allowed = allowed & keep[:, None, None, :].bool()
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=allowed)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1)), past


def _rate(draw: Draw) -> float:
    return draw.random("rate").choice([50.0, 10_000.0])


def _ours(draw: Draw) -> MultiHeadAttention:
    """Intently's layer, trained as drawn."""
    rotary = it.Rotary(draw.d, base=_rate(draw))
    options = AttentionOptions(mask=it.causal(), positions=rotary)
    fused = Projections(fused=False)
    return draw.trained(
        MultiHeadAttention(draw.c, draw.h, kv_heads=draw.g, attention=options, projections=fused)
    )


def _rotary(names: dict[str, Any], draw: Draw) -> nn.Module:
    model, ours = names["RotaryAttention"](draw.c, draw.h, draw.g), _ours(draw)
    for name, theirs in (("q", "wq"), ("k", "wk"), ("v", "wv"), ("out", "wo")):
        weights = {n: getattr(ours, f"{name}_{n}") for n in ("weight", "bias")}
        getattr(model, theirs).load_state_dict(weights)
    return model.eval()


ROTARY = Base(
    "rotary grouped-query module with a cache",
    (rotate, RotaryAttention),
    _rotary,
    lambda draw: {**x_ask(draw, it.causal()), "arguments": {"past": "past"}, "like": _ours(draw)},
    lambda draw: stepped(draw, x_cases(draw)),
    (
        slip("rotation-offset-lost", "positions = torch.arange(start, start + t)",
             "positions = torch.arange(t)"),
        slip("rotation-off-by-one", "positions = torch.arange(start, start + t)",
             "positions = torch.arange(start, start + t) + (past is not None)"),
        slip("keys-not-rotated", "rotate(k, positions)", "k"),
        slip("values-rotated", "rotate(k, positions)",
             "rotate(k, positions)\n        v = rotate(v, positions)"),
        slip("rotary-base", "RATE **", "(20 * RATE) **"),
        slip("rotary-pairs", "x[..., :half], x[..., half:]", "x[..., ::2], x[..., 1::2]"),
        slip("rotary-direction", "a * cos - b * sin, b * cos + a * sin",
             "a * cos + b * sin, b * cos - a * sin"),
        slip("rotary-over-heads", "positions[:, None].to(x.dtype)",
             "torch.arange(x.shape[1])[:, None, None].to(x.dtype)"),
        slip("cache-rotated-twice", "        q, k = rotate(q, positions), rotate(k, positions)\n",
             "        q = rotate(q, positions)\n        if past is None:\n"
             "            k = rotate(k, positions)\n",
             "        past = (k, v)\n",
             "            k = rotate(k, torch.arange(k.shape[2]))\n        past = (k, v)\n"),
        slip("cache-pairs-apart", "past = (k, v)", "past = (k, v.roll(1, dims=2))"),
        slip("cache-rows-exchanged", "torch.cat([past[1], v]", "torch.cat([past[1].flip(0), v]"),
        slip("cache-prepended", "torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)",
             "torch.cat([k, past[0]], dim=2), torch.cat([v, past[1]], dim=2)"),
        slip("mask-in-cache", "attn_mask=allowed", "attn_mask=allowed if start == 0 else None"),
        slip("key-heads-tiled", "keys = k.repeat_interleave(self.heads // self.kv_heads, dim=1)",
             "keys = k.repeat(1, self.heads // self.kv_heads, 1, 1)",
             "values = v.repeat_interleave(self.heads // self.kv_heads, dim=1)",
             "values = v.repeat(1, self.heads // self.kv_heads, 1, 1)"),
    ),
    constants=lambda draw: {"RATE": _rate(draw)},
)  # fmt: skip


class RollingAttention(nn.Module):
    def __init__(self, width, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        slopes = torch.tensor([2 ** (-8 * (i + 1) / heads) for i in range(heads)])
        self.register_buffer("slopes", slopes)
        self.keys, self.values = None, None

    def split(self, x):
        return self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def step(self, x):
        q, k, v = self.split(x)
        if self.keys is not None:
            k, v = torch.cat([self.keys, k], dim=2), torch.cat([self.values, v], dim=2)
        self.keys, self.values = k[:, :, -self.window :], v[:, :, -self.window :]
        past = torch.arange(1 - self.keys.shape[2], 1)
        scores = q @ self.keys.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores + self.slopes[:, None, None] * past
        return self.out((scores.softmax(-1) @ self.values).transpose(1, 2).flatten(2))

    def forward(self, x, cached=False):
        if cached:
            self.keys, self.values = None, None
            return torch.cat([self.step(x[:, i : i + 1]) for i in range(x.shape[1])], dim=1)
        q, k, v = self.split(x)
        place = torch.arange(x.shape[1])
        distance = place - place[:, None]
        allowed = (distance <= 0) & (distance > -self.window)
        bias = (self.slopes[:, None, None] * distance).masked_fill(~allowed, float("-inf"))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])
        return self.out(y.transpose(1, 2).flatten(2))


def _rolling_cases(draw: Draw) -> list[Case]:
    found = x_cases(draw)
    return [*found, *(Case(f"{x.name} cached", {**x.inputs, "cached": True}) for x in found)]


def _slopes(draw: Draw) -> it.Bias:
    return it.alibi(slopes=torch.tensor([2 ** (-8 * (i + 1) / draw.h) for i in range(draw.h)]))


ROLLING = Base(
    "ALiBi window module with a rolling cache",
    (RollingAttention,),
    lambda names, draw: draw.trained(names["RollingAttention"](draw.c, draw.h, draw.window)),
    lambda draw: {
        **x_ask(draw, it.causal() & it.window(draw.window - 1, 0)), "bias": _slopes(draw),
        "same": [{"cached": False}, {"cached": True}],
    },
    _rolling_cases,
    (
        slip("alibi-offset-lost", "torch.arange(1 - self.keys.shape[2], 1)", "torch.zeros(1)"),
        slip("alibi-sign", '"slopes", slopes', '"slopes", -slopes'),
        slip("alibi-slopes", "-8 * (i + 1) / heads", "-8 * (heads - i) / heads"),
        slip("alibi-missing", '"slopes", slopes', '"slopes", 0 * slopes'),
        slip("window-off-in-cache", "k[:, :, -self.window :], v[:, :, -self.window :]",
             "k[:, :, -self.window - 1 :], v[:, :, -self.window - 1 :]"),
        slip("cache-rolled-early", "k[:, :, -self.window :], v[:, :, -self.window :]",
             "k[:, :, 1 - self.window :], v[:, :, 1 - self.window :]"),
        slip("cache-overwritten", "v[:, :, -self.window :]\n",
             "v[:, :, -1:].expand(-1, -1, min(self.window, v.shape[2]), -1)\n"),
        slip("state-left", "            self.keys, self.values = None, None\n", ""),
    ),
)  # fmt: skip
