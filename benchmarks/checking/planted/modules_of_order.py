"""Modules in which something beside the attention may look along the sequence, or its axes move."""

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
from benchmarks.checking.planted.modules import x_ask, x_cases
from benchmarks.checking.planted.observing import Case

# ruff: noqa: D101 - the modules are read as the code of people who write no docstrings


# --- sequence first, heads folded into the batch ------------------------------------------------


class SequenceFirst(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.head = heads, width // heads
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, query, key_padding_mask=None, attn_mask=None):
        t, b, c = query.size()
        q = self.q_proj(query) * self.head**-0.5
        k, v = self.k_proj(query), self.v_proj(query)
        q = q.contiguous().view(t, b * self.heads, self.head).transpose(0, 1)
        k = k.contiguous().view(t, b * self.heads, self.head).transpose(0, 1)
        v = v.contiguous().view(t, b * self.heads, self.head).transpose(0, 1)
        scores = torch.bmm(q, k.transpose(1, 2))
        if attn_mask is not None:
            scores += attn_mask
        if key_padding_mask is not None:
            scores = scores.view(b, self.heads, t, t)
            scores = scores.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
            scores = scores.view(b * self.heads, t, t)
        weights = F.softmax(scores, dim=-1)
        y = torch.bmm(weights, v).transpose(0, 1).reshape(t, b, c)
        return self.out_proj(y)


def _future(t: int) -> torch.Tensor:
    """An additive causal mask (t, t)."""
    return torch.full((t, t), -torch.inf).triu(1)


def _first(draw: Draw, b: int, t: int, mask: bool = True, pads: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = {"query": draw.tensor(f"x{b}{t}", t, b, draw.c)}
    found |= {"key_padding_mask": padding(draw, b, t)} if pads else {}
    return found | ({"attn_mask": _future(t)} if mask else {})


def _first_cases(draw: Draw) -> list[Case]:
    b, t = draw.b, draw.t
    return [
        Case("bare", _first(draw, b, t, mask=False, pads=False)),
        Case("causal", _first(draw, b, t, pads=False)),
        Case("padded", _first(draw, b, t, mask=False)),
        Case("both", _first(draw, b, draw.s)),
    ]


SEQUENCE_FIRST = Base(
    "sequence-first module",
    (SequenceFirst,),
    lambda names, draw: draw.trained(names["SequenceFirst"](draw.c, draw.h)),
    lambda draw: {
        "inputs": _first(draw, draw.b, draw.t),
        "arguments": {"key_padding_mask": "ignore", "attn_mask": "add"},
    },
    _first_cases,
    (
        slip("mask-head-order", "scores = scores.view(b, self.heads, t, t)",
             "scores = scores.view(self.heads, b, t, t)",
             "key_padding_mask[:, None, None, :]", "key_padding_mask[None, :, None, :]"),
        slip("mask-on-query-axis", "key_padding_mask[:, None, None, :]",
             "key_padding_mask[:, None, :, None]"),
        slip("padding-attended", "scores = scores.masked_fill(", "scores.masked_fill("),
        slip("mask-missing", "scores += attn_mask", "scores + attn_mask"),
        slip("mask-transposed", "scores += attn_mask", "scores += attn_mask.mT"),
        slip("mask-twice", "scores += attn_mask", "scores += 2 * attn_mask"),
        slip("no-scale", " * self.head**-0.5", ""),
        slip("scaled-twice", "torch.bmm(q, k.transpose(1, 2))",
             "torch.bmm(q, k.transpose(1, 2)) / math.sqrt(self.head)"),
        slip("scale-by-width", "self.head**-0.5", "c**-0.5"),
        slip("softmax-over-batch", "F.softmax(scores, dim=-1)", "F.softmax(scores, dim=0)"),
        slip("heads-merged-by-reshape", ".transpose(0, 1).reshape(t, b, c)", ".reshape(t, b, c)"),
        slip("heads-split-by-reshape", "k.contiguous().view(t, b * self.heads, self.head)"
             ".transpose(0, 1)", "k.contiguous().view(b * self.heads, t, self.head)"),
        slip("mask-inverted", "key_padding_mask[:", "~key_padding_mask[:"),
    ),
)  # fmt: skip


# --- causal, with a short convolution and a norm before it --------------------------------------


class ConvolvedAttention(nn.Module):
    def __init__(self, width, heads, kernel=3):
        super().__init__()
        self.heads, self.kernel = heads, kernel
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, width, kernel, groups=width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        y = self.norm(x)
        y = F.pad(y.transpose(1, 2), (self.kernel - 1, 0))
        y = self.conv(y).transpose(1, 2)
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


CONVOLVED = Base(
    "causal module with a convolution",
    (ConvolvedAttention,),
    lambda names, draw: draw.trained(names["ConvolvedAttention"](draw.c, draw.h)),
    lambda draw: x_ask(draw, it.causal()),
    x_cases,
    (
        slip("leak-by-convolution", "(self.kernel - 1, 0)", "(self.kernel // 2, self.kernel // 2)"),
        slip("leak-by-convolution", "(self.kernel - 1, 0)", "(0, self.kernel - 1)", label="all"),
        slip("leak-by-norm", "nn.LayerNorm(width)", "nn.BatchNorm1d(width)",
             "self.norm(x)", "self.norm(x.transpose(1, 2)).transpose(1, 2)"),
        slip("leak-by-norm", "nn.LayerNorm(width)", "nn.GroupNorm(2, width)",
             "self.norm(x)", "self.norm(x.transpose(1, 2)).transpose(1, 2)", label="groups"),
        slip("leak-by-norm", "nn.LayerNorm(width)", "nn.InstanceNorm1d(width, affine=True)",
             "self.norm(x)", "self.norm(x.transpose(1, 2)).transpose(1, 2)", label="instance"),
        slip("leak-by-mean", "y = self.norm(x)", "y = self.norm(x - x.mean(1, keepdim=True))"),
        slip("leak-by-mean", "return x + self.out(y.transpose(1, 2).flatten(2))",
             "y = self.out(y.transpose(1, 2).flatten(2))\n"
             "        return x + y / y.std(1, keepdim=True, correction=0).clamp(min=0.1)",
             label="deviation"),
        slip("mask-missing", ", is_causal=True", ""),
        slip("scaled-twice", "attention(q, k", "attention(q * q.shape[-1] ** -0.5, k"),
        slip("no-scale", "is_causal=True", "is_causal=True, scale=1.0"),
        slip("heads-interleaved", "(3, self.heads, -1)).permute(2, 0, 3, 1, 4)",
             "(3, -1, self.heads)).permute(2, 0, 4, 1, 3)"),
        slip("heads-merged-by-reshape", "y.transpose(1, 2).flatten(2)", "y.reshape(x.shape)"),
        slip("gradient-scaled", "attention(q, k, v", "attention(q.detach() + (q - q.detach()) / 3,"
             " k, v"),
    ),
)  # fmt: skip


# --- T5's relative bias -------------------------------------------------------------------------


class RelativeAttention(nn.Module):
    def __init__(self, width, heads, reach=4):
        super().__init__()
        self.heads, self.reach = heads, reach
        self.q, self.k = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.v, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.table = nn.Embedding(2 * reach + 1, heads)
        self.eager = False

    def forward(self, x, eager=False):
        b, t, c = x.shape
        q = self.q(x).view(b, t, self.heads, -1).transpose(1, 2) / math.sqrt(c // self.heads)
        k = self.k(x).view(b, t, self.heads, -1).transpose(1, 2)
        v = self.v(x).view(b, t, self.heads, -1).transpose(1, 2)
        place = torch.arange(t)
        distance = (place[None, :] - place[:, None]).clamp(-self.reach, self.reach)
        bias = self.table(distance + self.reach).permute(2, 0, 1)
        if eager:
            scores = torch.matmul(q, k.transpose(-2, -1))
            scores = scores + bias
            y = F.softmax(scores, dim=-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None], scale=1.0)
        return self.o(y.transpose(1, 2).reshape(b, t, c))


def _relative_cases(draw: Draw) -> list[Case]:
    found = x_cases(draw)
    return [*found, *(Case(f"{x.name} eager", {**x.inputs, "eager": True}) for x in found)]


RELATIVE = Base(
    "module with a relative bias",
    (RelativeAttention,),
    lambda names, draw: draw.trained(names["RelativeAttention"](draw.c, draw.h)),
    lambda draw: {**x_ask(draw, None), "same": [{"eager": False}, {"eager": True}]},
    _relative_cases,
    (
        slip("bias-in-one-back-end", "            scores = scores + bias\n", ""),
        slip("bias-in-one-back-end", "attn_mask=bias[None], ", "", label="fused"),
        slip("scaled-twice", ", scale=1.0", ""),
        slip("scaled-twice", "torch.matmul(q, k.transpose(-2, -1))",
             "torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(c // self.heads)", label="eager"),
        slip("mask-twice", "scores + bias", "scores + bias + bias"),
        slip("softmax-over-heads", "dim=-1", "dim=1"),
        slip("softmax-over-queries", "dim=-1", "dim=-2"),
        slip("heads-merged-by-reshape", "y.transpose(1, 2).reshape(b, t, c)", "y.reshape(b, t, c)"),
        slip("gradient-cut", "scores + bias", "scores + bias.detach()"),
        slip("batch-and-sequence-exchanged", "b, t, c = x.shape",
             "t, b, c = x.shape\n        x = x.transpose(0, 1)",
             "reshape(b, t, c))", "reshape(b, t, c)).transpose(0, 1)"),
        slip("bias-in-one-back-end", "attn_mask=bias[None]", "attn_mask=bias.mT[None]",
             label="transposed"),
    ),
)  # fmt: skip
