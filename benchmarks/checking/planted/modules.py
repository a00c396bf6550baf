"""Modules over x, and over x and a context, with their projections."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import intently as it
from benchmarks.checking.planted.base import Base, slip
from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.functions import padding
from benchmarks.checking.planted.observing import Case

# ruff: noqa: D101 - the modules are read as the code of people who write no docstrings


def x_cases(draw: Draw, width: int | None = None, train: bool = True) -> list[Case]:
    """Cases of a module over x (b, t, c): several lengths, one item, and training."""
    c = width or draw.c
    found = [
        Case(f"x b={b} t={t}", {"x": draw.tensor(f"x{b}{t}", b, t, c)})
        for b, t in ((draw.b, draw.t), (1, draw.s), (draw.b, 1))
    ]
    if train:
        found.append(Case("training", {"x": draw.tensor("x", draw.b, draw.t, c)}, train=True))
    return found


def x_ask(draw: Draw, mask: it.Mask | None) -> dict[str, Any]:
    """What the user of a module over x tells: an example, and the mask."""
    return {"inputs": {"x": draw.tensor("ask", draw.b, draw.t, draw.c)}, "mask": mask}


# --- causal self-attention with one fused projection --------------------------------------------


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
        q = q.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        k = k.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.past[:, :, :t, :t] == 0, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        weights = self.drop(weights)
        y = torch.matmul(weights, v)
        y = y.transpose(1, 2).contiguous().view(b, t, c)
        return self.proj(y)


CAUSAL_MODULE = Base(
    "causal self-attention module",
    (CausalSelfAttention,),
    lambda names, draw: draw.trained(names["CausalSelfAttention"](draw.c, draw.h)),
    lambda draw: x_ask(draw, it.causal()),
    x_cases,
    (
        slip("scale-by-width", "math.sqrt(k.size(-1))", "math.sqrt(c)"),
        slip("no-scale", " * (1.0 / math.sqrt(k.size(-1)))", ""),
        slip("scale-by-d", "math.sqrt(k.size(-1))", "k.size(-1)"),
        slip("scaled-twice", "(q @ k", "(q * k.size(-1) ** -0.5 @ k"),
        slip("mask-inverted", ":t] == 0", ":t] == 1"),
        slip("mask-transposed", "torch.tril(", "torch.triu("),
        slip("mask-ahead-by-one", "torch.ones(32, 32))", "torch.ones(32, 32), 1)"),
        slip("mask-missing", "scores = scores.masked_fill", "scores.masked_fill"),
        slip("mask-too-weak", 'float("-inf")', "-1.0"),
        slip("mask-dropped-with-dropout",
             '        scores = scores.masked_fill(self.past[:, :, :t, :t] == 0, float("-inf"))\n',
             "        if not (self.training and self.dropout > 0):\n    "
             '        scores = scores.masked_fill(self.past[:, :, :t, :t] == 0, float("-inf"))\n'),
        slip("softmax-over-queries", "dim=-1", "dim=-2"),
        slip("softmax-over-heads", "dim=-1", "dim=1"),
        slip("heads-split-by-reshape",
             "q = q.view(b, t, self.heads, c // self.heads).transpose(1, 2)",
             "q = q.view(b, self.heads, t, c // self.heads)",
             "k = k.view(b, t, self.heads, c // self.heads).transpose(1, 2)",
             "k = k.view(b, self.heads, t, c // self.heads)",
             "v = v.view(b, t, self.heads, c // self.heads).transpose(1, 2)",
             "v = v.view(b, self.heads, t, c // self.heads)"),
        slip("heads-merged-by-reshape", "y.transpose(1, 2).contiguous()", "y.contiguous()"),
        slip("dropout-in-eval", "self.drop(weights)", "F.dropout(weights, self.dropout)"),
        slip("dropout-twice", "self.drop(weights)", "self.drop(self.drop(weights))"),
        slip("dropout-before-softmax", "        weights = self.drop(weights)\n", "",
             "F.softmax(scores, dim=-1)", "F.softmax(self.drop(scores), dim=-1)"),
        slip("gradient-cut", "y = torch.matmul(weights, v)",
             "y = torch.matmul(weights, v.detach())"),
        slip("gradient-scaled", "        b, t, c = x.shape\n",
             "        b, t, c = x.shape\n        x = 0.1 * x + 0.9 * x.detach()\n"),
        slip("leak-by-mean", "        b, t, c = x.shape\n",
             "        b, t, c = x.shape\n        x = x - x.mean(dim=1, keepdim=True)\n"),
        slip("batch-and-sequence-exchanged", "self.qkv(x)", "self.qkv(x.transpose(0, 1))",
             "        b, t, c = x.shape\n", "        t, b, c = x.shape\n",
             "return self.proj(y)", "return self.proj(y.transpose(0, 1))"),
    ),
)  # fmt: skip


# --- cross-attention, the context padded --------------------------------------------------------


class CrossAttention(nn.Module):
    def __init__(self, width, context_width, heads):
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(context_width, width, bias=False)
        self.to_v = nn.Linear(context_width, width, bias=False)
        self.to_out = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.1))

    def forward(self, x, context, context_pad=None):
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        if context_pad is not None:
            hidden = context_pad[:, None, None, :]
            scores = scores.masked_fill(hidden, -torch.finfo(scores.dtype).max)
        weights = scores.softmax(dim=-1)
        y = torch.einsum("bhij,bhjd->bihd", weights, v)
        return self.to_out(y.flatten(2))


def context_width(draw: Draw) -> int:
    """The width of the context."""
    return draw.one_of("context", draw.c, draw.c + 5)


def _cross(draw: Draw, b: int, t: int, s: int, padded: bool = True) -> dict[str, Any]:
    x, context = draw.tensor(f"x{b}{t}", b, t, draw.c), (b, s, context_width(draw))
    found = {"x": x, "context": draw.tensor(f"context{b}{s}", *context)}
    return {**found, "context_pad": padding(draw, b, s)} if padded else found


def _cross_cases(draw: Draw) -> list[Case]:
    b, t, s = draw.b, draw.t, draw.s
    return [
        Case("bare", _cross(draw, b, t, s, False)),
        Case("square", _cross(draw, b, s, s)),
        Case("padded", _cross(draw, b, t, s)),
        Case("more queries", _cross(draw, b, s, t)),
        Case("training", _cross(draw, b, t, s), train=True),
    ]


CROSS_MODULE = Base(
    "cross-attention module",
    (CrossAttention,),
    lambda names, draw: draw.trained(
        names["CrossAttention"](draw.c, context_width(draw), draw.h)
    ),
    lambda draw: {
        "inputs": _cross(draw, draw.b, draw.t, draw.s),
        "arguments": {"context_pad": "ignore"},
    },
    _cross_cases,
    (
        slip("padding-attended-in-cross", "scores = scores.masked_fill", "scores.masked_fill"),
        slip("mask-inverted", "context_pad[:", "~context_pad[:"),
        slip("mask-added-as-number",
             "scores.masked_fill(hidden, -torch.finfo(scores.dtype).max)", "scores + hidden"),
        slip("mask-too-weak", "-torch.finfo(scores.dtype).max", "-1"),
        slip("mask-batch-rows", "context_pad[:, None", "context_pad[:1, None"),
        slip("no-scale", " * self.scale", ""),
        slip("scale-by-width", "(width // heads) ** -0.5", "width**-0.5"),
        slip("scale-by-d", "(width // heads) ** -0.5", "1 / (width // heads)"),
        slip("softmax-over-heads", "softmax(dim=-1)", "softmax(dim=1)"),
        slip("softmax-over-batch", "softmax(dim=-1)", "softmax(dim=0)"),
        slip("values-are-keys", "self.to_v(context)", "self.to_k(context)"),
        slip("heads-merged-by-reshape", "->bihd", "->bhid", "y.flatten(2)",
             "y.reshape(x.shape[0], -1, self.to_q.out_features)"),
        slip("heads-split-by-reshape",
             "y.unflatten(-1, (self.heads, -1)).transpose(1, 2)",
             "y.reshape(len(y), self.heads, y.shape[1], -1)"),
        slip("heads-interleaved", "y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y",
             "y.unflatten(-1, (-1, self.heads)).permute(0, 3, 1, 2) for y"),
        slip("gradient-cut", "self.to_v(context)", "self.to_v(context.detach())"),
        slip("dropout-in-eval", 'y = torch.einsum("bhij', 'weights = F.dropout(weights, 0.1)\n'
             '        y = torch.einsum("bhij'),
    ),
)  # fmt: skip


# --- bidirectional self-attention, the mask as most tokenizers give it --------------------------


class BertLikeAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def split(self, x):
        return x.view(*x.shape[:2], self.num_heads, self.head_dim).permute(0, 2, 1, 3)

    def forward(self, x, attention_mask=None, output_attentions=False):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        bias = None
        if attention_mask is not None:
            bias = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -1e9
        if output_attentions:
            scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.head_dim)
            if bias is not None:
                scores = scores + bias
            weights = torch.softmax(scores, dim=-1)
            y = torch.matmul(weights, v)
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        y = self.dense(y.permute(0, 2, 1, 3).flatten(2))
        return self.norm(x + y)


def _bert(draw: Draw, b: int, t: int, **others: Any) -> dict[str, Any]:
    kept = (~padding(draw, b, t)).long()
    return {"x": draw.tensor(f"x{b}{t}", b, t, draw.c), "attention_mask": kept, **others}


def _bert_cases(draw: Draw) -> list[Case]:
    b, t = draw.b, draw.t
    return [
        *x_cases(draw),
        Case("padded", _bert(draw, b, t)),
        Case("padded, weights", _bert(draw, b, t, output_attentions=True)),
        Case("weights", {**x_cases(draw)[0].inputs, "output_attentions": True}),
        Case("training", _bert(draw, b, t), train=True),
    ]


BERT_MODULE = Base(
    "bidirectional self-attention module with padding",
    (BertLikeAttention,),
    lambda names, draw: draw.trained(names["BertLikeAttention"](draw.c, draw.h)),
    lambda draw: {
        "inputs": _bert(draw, draw.b, draw.t),
        "arguments": {"attention_mask": "attend"},
        "same": [{"output_attentions": False}, {"output_attentions": True}],
    },
    _bert_cases,
    (
        slip("mask-inverted", "(1.0 - attention_mask[:, None, None, :].to(x.dtype))",
             "attention_mask[:, None, None, :].to(x.dtype)"),
        slip("padding-attended", "bias = (1.0", "ignored = (1.0"),
        slip("mask-too-weak", "* -1e9", "* -1.0"),
        slip("mask-too-weak", "* -1e9", "* -10.0", label="10"),
        slip("mask-added-as-number",
             "(1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -1e9",
             "attention_mask[:, None, None, :].to(x.dtype)"),
        slip("mask-on-query-axis", "attention_mask[:, None, None, :]",
             "attention_mask[:, None, :, None]"),
        slip("mask-dropped-with-weights", "                scores = scores + bias\n",
             "                scores = scores + 0 * bias\n"),
        slip("mask-in-one-back-end", "attn_mask=bias", "attn_mask=None"),
        slip("mask-twice", "scores = scores + bias\n", "scores = scores + bias + bias\n"),
        slip("scaled-twice", "attention(q, k", "attention(q / math.sqrt(self.head_dim), k"),
        slip("no-scale", " / math.sqrt(self.head_dim)", "", label="with weights"),
        slip("scale-by-width", "math.sqrt(self.head_dim)", "math.sqrt(x.shape[-1])",
             label="with weights"),
        slip("mask-after-softmax", "                scores = scores + bias\n",
             "                scores = scores\n", "y = torch.matmul(weights, v)",
             "y = torch.matmul(weights if bias is None else weights * (bias == 0), v)"),
        slip("heads-split-by-reshape",
             "x.view(*x.shape[:2], self.num_heads, self.head_dim).permute(0, 2, 1, 3)",
             "x.view(len(x), self.num_heads, -1, self.head_dim)"),
        slip("values-are-keys", "self.split(self.value(x))", "self.split(self.key(x))"),
        slip("gradient-cut", "self.split(self.key(x))", "self.split(self.key(x)).detach()"),
    ),
)  # fmt: skip
