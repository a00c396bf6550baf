"""Modules that go on from earlier steps: rotary grouped-query, ALiBi, and a rolling window."""

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

# ruff: noqa: D101, D103 - the modules are read as the code of people who write no docstrings

ROPE_BASE = 10000.0


def stepped(draw: Draw, cases: list[Case]) -> list[Case]:
    """The cases, and the first of them step by step, in pieces, and after a long beginning."""
    t = draw.t
    pieces = {"steps": (1,) * t, "pieces": (3, 2, t - 5), "beginning and steps": (t - 3, 1, 1, 1)}
    whole = cases[0]
    return [*cases, *(replace(whole, name=name, steps=sizes) for name, sizes in pieces.items())]


def past_ask(draw: Draw) -> dict[str, Any]:
    """What the user of a causal module with ``past`` tells."""
    return {**x_ask(draw, it.causal()), "arguments": {"past": "past"}}


# --- rotary, shared key heads -------------------------------------------------------------------


def rotate(x, positions):
    half = x.shape[-1] // 2
    rates = ROPE_BASE ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = positions[:, None].to(x.dtype) * rates
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class RotaryAttention(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.norm = nn.RMSNorm(width)
        self.wq = nn.Linear(width, heads * self.head, bias=False)
        self.wk = nn.Linear(width, kv_heads * self.head, bias=False)
        self.wv = nn.Linear(width, kv_heads * self.head, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x, past=None):
        b, t, _ = x.shape
        y = self.norm(x)
        q = self.wq(y).view(b, t, self.heads, self.head).transpose(1, 2)
        k = self.wk(y).view(b, t, self.kv_heads, self.head).transpose(1, 2)
        v = self.wv(y).view(b, t, self.kv_heads, self.head).transpose(1, 2)
        start = 0 if past is None else past[0].shape[2]
        positions = torch.arange(start, start + t)
        q, k = rotate(q, positions), rotate(k, positions)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        past = (k, v)
        keys = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        values = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        allowed = torch.ones(t, keys.shape[2], dtype=torch.bool).tril(keys.shape[2] - t)
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=allowed)
        y = y.transpose(1, 2).reshape(b, t, -1)
        return x + self.wo(y), past


def _base(draw: Draw) -> float:
    return draw.random("rope").choice([100.0, 1000.0])


ROTARY = Base(
    "rotary grouped-query module with a cache",
    (rotate, RotaryAttention),
    lambda names, draw: draw.trained(names["RotaryAttention"](draw.c, draw.h, draw.g)),
    past_ask,
    lambda draw: stepped(draw, x_cases(draw)),
    (
        slip("rotation-offset-lost", "positions = torch.arange(start, start + t)",
             "positions = torch.arange(t)"),
        slip("rotation-offset-lost", "q, k = rotate(q, positions), rotate(k, positions)",
             "q, k = rotate(q, positions), rotate(k, positions - start)", label="keys only"),
        slip("rotation-off-by-one", "positions = torch.arange(start, start + t)",
             "positions = torch.arange(start, start + t) + (past is not None)"),
        slip("keys-not-rotated", "rotate(q, positions), rotate(k, positions)",
             "rotate(q, positions), k"),
        slip("cache-rotated-twice",
             "        q, k = rotate(q, positions), rotate(k, positions)\n",
             "        q = rotate(q, positions)\n        if past is None:\n"
             "            k = rotate(k, positions)\n",
             "        past = (k, v)\n",
             "            k = rotate(k, torch.arange(k.shape[2]))\n        past = (k, v)\n"),
        slip("cache-pairs-apart", "past = (k, v)", "past = (k, v.roll(1, dims=2))"),
        slip("values-rotated", "rotate(q, positions), rotate(k, positions)",
             "rotate(q, positions), rotate(k, positions)\n        v = rotate(v, positions)"),
        slip("cache-overwritten",
             "k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)",
             "k = torch.cat([past[0][:, :, :-1], k], dim=2)\n"
             "            v = torch.cat([past[1][:, :, :-1], v], dim=2)"),
        slip("cache-rows-exchanged", "torch.cat([past[1], v], dim=2)",
             "torch.cat([past[1].flip(0), v], dim=2)"),
        slip("cache-rows-exchanged", "k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], "
             "v], dim=2)", "k = torch.cat([past[0].roll(1, 0), k], dim=2)\n"
             "            v = torch.cat([past[1].roll(1, 0), v], dim=2)", label="both"),
        slip("cache-prepended", "torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)",
             "torch.cat([k, past[0]], dim=2), torch.cat([v, past[1]], dim=2)"),
        slip("mask-top-left", "tril(keys.shape[2] - t)", "tril()"),
        slip("mask-in-cache", "attn_mask=allowed", "attn_mask=allowed if start == 0 else None"),
        slip("mask-missing", ", attn_mask=allowed", ""),
        slip("mask-ahead-by-one", "tril(keys.shape[2] - t)", "tril(keys.shape[2] - t + 1)"),
        slip("key-heads-tiled",
             "keys = k.repeat_interleave(self.heads // self.kv_heads, dim=1)",
             "keys = k.repeat(1, self.heads // self.kv_heads, 1, 1)", label="keys only"),
        slip("gradient-cut", "past = (k, v)", "past = (k.detach(), v.detach())"),
        slip("leak-by-norm", "y = self.norm(x)",
             "y = self.norm(x) / x.pow(2).mean(dim=(1, 2), keepdim=True).sqrt()"),
    ),
    constants=lambda draw: {"ROPE_BASE": _base(draw)},
)  # fmt: skip


# --- ALiBi --------------------------------------------------------------------------------------


class AlibiAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.dense = nn.Linear(width, width)
        slopes = torch.tensor([2 ** (-8 * (i + 1) / heads) for i in range(heads)])
        self.register_buffer("slopes", slopes)

    def forward(self, x, past=None):
        b, t, c = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (y.reshape(b, t, self.heads, -1).transpose(1, 2) for y in (q, k, v))
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        s = k.shape[2]
        distance = torch.arange(s) - torch.arange(s - t, s)[:, None]
        bias = self.slopes[:, None, None] * distance
        bias = bias.masked_fill(distance > 0, float("-inf"))
        scores = torch.baddbmm(
            bias.repeat(b, 1, 1), q.flatten(0, 1), k.flatten(0, 1).mT, alpha=q.shape[-1] ** -0.5
        )
        weights = scores.softmax(-1).view(b, self.heads, t, s)
        y = (weights @ v).transpose(1, 2).reshape(b, t, c)
        return self.dense(y), (k, v)


ALIBI_MODULE = Base(
    "ALiBi module with a cache",
    (AlibiAttention,),
    lambda names, draw: draw.trained(names["AlibiAttention"](draw.c, draw.h)),
    past_ask,
    lambda draw: stepped(draw, x_cases(draw)),
    (
        slip("alibi-offset-lost", "bias = self.slopes[:, None, None] * distance",
             "bias = self.slopes[:, None, None] * (torch.arange(s) - torch.arange(t)[:, None])"),
        slip("alibi-offset-lost", "bias = self.slopes[:, None, None] * distance",
             "bias = self.slopes[:, None, None] * (torch.arange(s) - torch.arange(t)[:, None])"
             ".clamp(max=0)", label="clamped"),
        slip("alibi-sign", "bias = self.slopes", "bias = -self.slopes"),
        slip("alibi-slopes", "-8 * (i + 1) / heads", "-8 * (heads - i) / heads"),
        slip("alibi-missing", "bias = self.slopes[:, None, None] * distance",
             "bias = torch.zeros_like(self.slopes)[:, None, None] * distance"),
        slip("mask-head-order", "bias.repeat(b, 1, 1)", "bias.repeat_interleave(b, dim=0)"),
        slip("mask-top-left", "masked_fill(distance > 0",
             "masked_fill(distance > t - s"),
        slip("mask-ahead-by-one", "distance > 0", "distance > 1"),
        slip("mask-in-cache", "distance > 0", "(distance > 0) & (past is None)"),
        slip("no-scale", ", alpha=q.shape[-1] ** -0.5", ""),
        slip("scale-by-width", "q.shape[-1] ** -0.5", "c**-0.5"),
        slip("cache-overwritten", "            k = torch.cat([past[0], k], dim=2)\n"
             "            v = torch.cat([past[1], v], dim=2)\n",
             "            k = torch.cat([past[0][:, :, :1], k], dim=2)\n"
             "            v = torch.cat([past[1][:, :, :1], v], dim=2)\n"),
        slip("cache-rows-exchanged", "torch.cat([past[0], k], dim=2)",
             "torch.cat([past[0].flip(0), k], dim=2)"),
        slip("heads-split-by-reshape", "y.reshape(b, t, self.heads, -1).transpose(1, 2)",
             "y.reshape(b, self.heads, t, -1)"),
        slip("softmax-over-queries", "scores.softmax(-1)", "scores.softmax(1)"),
        slip("scale-by-d", "alpha=q.shape[-1] ** -0.5", "alpha=1 / q.shape[-1]"),
    ),
)  # fmt: skip


# --- a window, with a cache of its own ----------------------------------------------------------


class RollingAttention(nn.Module):
    def __init__(self, width, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.keys, self.values = None, None

    def split(self, x):
        return self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def step(self, x):
        q, k, v = self.split(x)
        if self.keys is not None:
            k, v = torch.cat([self.keys, k], dim=2), torch.cat([self.values, v], dim=2)
        self.keys, self.values = k[:, :, -self.window :], v[:, :, -self.window :]
        scores = q @ self.keys.transpose(-2, -1) / math.sqrt(q.shape[-1])
        return self.out((scores.softmax(-1) @ self.values).transpose(1, 2).flatten(2))

    def forward(self, x, cached=False):
        if cached:
            self.keys, self.values = None, None
            return torch.cat([self.step(x[:, i : i + 1]) for i in range(x.shape[1])], dim=1)
        q, k, v = self.split(x)
        place = torch.arange(x.shape[1])
        distance = place[:, None] - place
        allowed = (distance >= 0) & (distance < self.window)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.out(y.transpose(1, 2).flatten(2))


def cached_cases(draw: Draw) -> list[Case]:
    """Cases of a module with a switch for its own cache."""
    found = x_cases(draw)
    return [*found, *(Case(f"{x.name} cached", {**x.inputs, "cached": True}) for x in found)]


def cached_ask(draw: Draw, mask: it.Mask) -> dict[str, Any]:
    """What the user of such a module tells."""
    return {**x_ask(draw, mask), "same": [{"cached": False}, {"cached": True}]}


ROLLING = Base(
    "window module with a rolling cache",
    (RollingAttention,),
    lambda names, draw: draw.trained(names["RollingAttention"](draw.c, draw.h, draw.window)),
    lambda draw: cached_ask(draw, it.causal() & it.window(draw.window - 1, 0)),
    cached_cases,
    (
        slip("window-off-in-cache", "k[:, :, -self.window :], v[:, :, -self.window :]",
             "k[:, :, -self.window - 1 :], v[:, :, -self.window - 1 :]", label="one more"),
        slip("window-off-in-cache", "k[:, :, -self.window :], v[:, :, -self.window :]", "k, v",
             label="none"),
        slip("cache-rolled-early", "            k, v = torch.cat([self.keys, k], dim=2), "
             "torch.cat([self.values, v], dim=2)\n",
             "            k = torch.cat([self.keys[:, :, 1:], k], dim=2)\n"
             "            v = torch.cat([self.values[:, :, 1:], v], dim=2)\n"),
        slip("cache-rolled-early", "k[:, :, -self.window :], v[:, :, -self.window :]",
             "k[:, :, 1 - self.window :], v[:, :, 1 - self.window :]", label="one less"),
        slip("cache-overwritten", "v[:, :, -self.window :]\n",
             "v[:, :, -1:].expand(-1, -1, min(self.window, v.shape[2]), -1)\n"),
        slip("state-left", "            self.keys, self.values = None, None\n", ""),
        slip("cache-rows-exchanged", "torch.cat([self.values, v], dim=2)",
             "torch.cat([self.values.flip(0), v], dim=2)"),
        slip("window-left-off-by-one", "distance < self.window", "distance <= self.window"),
        slip("window-missing", "(distance >= 0) & (distance < self.window)", "distance >= 0"),
        slip("mask-ahead-by-one", "distance >= 0", "distance >= -1"),
        slip("mask-missing", ", attn_mask=allowed", ""),
        slip("no-scale", " / math.sqrt(q.shape[-1])", "", label="cached"),
        slip("scale-by-d", "math.sqrt(q.shape[-1])", "q.shape[-1]", label="cached"),
        slip("softmax-over-heads", "softmax(-1)", "softmax(1)", label="cached"),
        slip("gradient-cut", "self.keys, self.values = k[:", "k, v = k.detach(), v.detach()\n"
             "        self.keys, self.values = k[:"),
    ),
)  # fmt: skip
