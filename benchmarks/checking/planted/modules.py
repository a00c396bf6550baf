"""Modules over x: causal with one fused projection, and bidirectional with three of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import intently as it
from benchmarks.checking.planted.base import Base, slip
from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.observing import Case

# ruff: noqa: D101 - the bases are the code of people who write no docstrings


def x_cases(draw: Draw) -> list[Case]:
    """Cases of a module over x (b, t, c): several lengths, one item, and training."""
    shapes = (draw.b, draw.t), (1, draw.s), (draw.b, 1)
    found = [Case(f"x {n}", {"x": draw.tensor("x", *n, draw.c)}) for n in shapes]
    return [*found, Case("training", found[0].inputs, train=True)]


def x_ask(draw: Draw, mask: it.Mask | None) -> dict[str, Any]:
    """What the user of a module over x tells: an example, and the mask."""
    return {"inputs": {"x": draw.tensor("ask", draw.b, draw.t, draw.c)}, "mask": mask}


class CausalSelfAttention(nn.Module):
    def __init__(self, width, heads, dropout=0.2):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("past", torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.past[:, :, :t, :t] == 0, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        weights = self.drop(weights)
        y = torch.matmul(weights, v)
        y = y.transpose(1, 2).contiguous().view(b, t, c)
        return self.proj(y)


def _torch_layer(draw: Draw) -> nn.MultiheadAttention:
    with torch.random.fork_rng(devices=[]):
        return draw.trained(nn.MultiheadAttention(draw.c, draw.h, batch_first=True))


def _reference(draw: Draw) -> Callable[[Tensor], Tensor]:
    layer = _torch_layer(draw)

    def reference(x: Tensor) -> Tensor:
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return layer.to(x.dtype)(x, x, x, attn_mask=later, need_weights=False)[0]

    return reference


def _fused(names: dict[str, Any], draw: Draw) -> nn.Module:
    model, layer = names["CausalSelfAttention"](draw.c, draw.h), _torch_layer(draw)
    model.qkv.load_state_dict({"weight": layer.in_proj_weight, "bias": layer.in_proj_bias})
    model.proj.load_state_dict(layer.out_proj.state_dict())
    return model.eval()


FUSED = Base(
    "causal module with a fused projection",
    (CausalSelfAttention,),
    _fused,
    lambda draw: {**x_ask(draw, it.causal()), "like": _reference(draw)},
    x_cases,
    (
        slip("layout-of-fused-rows", "self.qkv(x).split(c, dim=2)",
             "self.qkv(x).view(b, t, self.heads, 3, -1).transpose(2, 3).reshape(b, t, 3, c)"
             ".unbind(2)"),
        slip("projections-exchanged", "q, k, v = self.qkv(x)", "k, q, v = self.qkv(x)"),
        slip("bias-missing", "self.qkv(x)", "F.linear(x, self.qkv.weight)"),
        slip("weight-transposed", "self.proj(y)",
             "F.linear(y, self.proj.weight.T, self.proj.bias)"),
        slip("mask-transposed", "torch.tril(", "torch.triu("),
        slip("mask-dropped-with-dropout",
             '        scores = scores.masked_fill(self.past[:, :, :t, :t] == 0, float("-inf"))\n',
             "        if not (self.training and self.dropout > 0):\n    "
             '        scores = scores.masked_fill(self.past[:, :, :t, :t] == 0, float("-inf"))\n'),
        slip("softmax-over-heads", "dim=-1", "dim=1"),
        slip("heads-interleaved", "y.view(b, t, self.heads, -1).transpose(1, 2) for",
             "y.view(b, t, -1, self.heads).permute(0, 3, 1, 2) for"),
        slip("heads-merged-by-reshape", "y.transpose(1, 2).contiguous()", "y.contiguous()"),
        slip("batch-and-sequence-exchanged", "self.qkv(x)", "self.qkv(x.transpose(0, 1))",
             "        b, t, c = x.shape\n", "        t, b, c = x.shape\n",
             "return self.proj(y)", "return self.proj(y.transpose(0, 1))"),
        slip("dropout-in-eval", "self.drop(weights)", "F.dropout(weights, self.dropout)"),
        slip("dropout-twice", "self.drop(weights)", "self.drop(self.drop(weights))"),
        slip("dropout-before-softmax", "        weights = self.drop(weights)\n", "",
             "F.softmax(scores, dim=-1)", "F.softmax(self.drop(scores), dim=-1)"),
        slip("gradient-cut", "torch.matmul(weights, v)", "torch.matmul(weights, v.detach())"),
        slip("leak-by-mean", "        b, t, c = x.shape\n",
             "        b, t, c = x.shape\n        x = x - x.mean(dim=1, keepdim=True)\n"),
        slip("leak-by-norm", "        b, t, c = x.shape\n",
             "        b, t, c = x.shape\n        x = x / x.norm(dim=1, keepdim=True)\n"),
    ),
)  # fmt: skip


class RelativeAttention(nn.Module):
    def __init__(self, width, heads, reach=4):
        super().__init__()
        self.num_heads, self.head_dim, self.reach = heads, width // heads, reach
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.dense = nn.Linear(width, width), nn.Linear(width, width)
        self.table = nn.Embedding(2 * reach + 1, heads)

    def split(self, x):
        return x.view(*x.shape[:2], self.num_heads, self.head_dim).permute(0, 2, 1, 3)

    def forward(self, x, attention_mask=None, output_attentions=False):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        place = torch.arange(x.shape[1])
        distance = (place - place[:, None]).clamp(-self.reach, self.reach)
        bias = self.table(distance + self.reach).permute(2, 0, 1)
        if attention_mask is not None:
            bias = bias + (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -1e9
        if output_attentions:
            scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.head_dim)
            weights = torch.softmax(scores + bias, dim=-1)
            y = torch.matmul(weights, v)
        else:
            bias = bias.expand(len(x), -1, -1, -1)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.dense(y.permute(0, 2, 1, 3).flatten(2))


def _kept(draw: Draw) -> dict[str, Any]:
    kept = (~draw.padding(draw.b, draw.t)).long()
    return {"x": draw.tensor("x", draw.b, draw.t, draw.c), "attention_mask": kept}


def _kept_cases(draw: Draw) -> list[Case]:
    found = [*x_cases(draw), Case("padded", _kept(draw))]
    found.append(Case("padded, training", _kept(draw), train=True))
    weights = {"output_attentions": True}
    return [*found, *(Case(f"{x.name}, weights", x.inputs | weights) for x in found)]


RELATIVE = Base(
    "module with padding and a relative bias",
    (RelativeAttention,),
    lambda names, draw: draw.trained(names["RelativeAttention"](draw.c, draw.h)),
    lambda draw: {
        "inputs": _kept(draw), "arguments": {"attention_mask": "attend"},
        "same": [{"output_attentions": False}, {"output_attentions": True}],
    },
    _kept_cases,
    (
        slip("padding-attended", "            bias = bias + (1.0", "            _ = bias + (1.0"),
        slip("mask-dropped-with-weights", "if attention_mask is not None:",
             "if attention_mask is not None and not output_attentions:"),
        slip("mask-in-one-back-end", "if attention_mask is not None:",
             "if attention_mask is not None and output_attentions:"),
        slip("bias-in-one-back-end", "permute(2, 0, 1)", "permute(2, 0, 1) * output_attentions"),
        slip("bias-scaled", " / math.sqrt(self.head_dim)", "", "torch.softmax(scores + bias, ",
             "torch.softmax((scores + bias) / math.sqrt(self.head_dim), "),
        slip("mask-twice", "scores + bias", "scores + bias + bias"),
    ),
)  # fmt: skip
