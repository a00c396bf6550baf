"""Layers that should be the same as another's: their user has the other at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import intently as it
from benchmarks.checking.planted.base import Base, slip
from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.modules import x_ask, x_cases
from intently.nn import AttentionOptions, MultiHeadAttention, Projections

# ruff: noqa: D101 - the modules are read as the code of people who write no docstrings

RATE = 1e4


# --- the weights of nn.MultiheadAttention -------------------------------------------------------


class Ported(nn.Module):
    def __init__(self, other):
        super().__init__()
        self.heads = other.num_heads
        self.in_proj_weight = nn.Parameter(other.in_proj_weight.detach().clone())
        self.in_proj_bias = nn.Parameter(other.in_proj_bias.detach().clone())
        self.out_weight = nn.Parameter(other.out_proj.weight.detach().clone())
        self.out_bias = nn.Parameter(other.out_proj.bias.detach().clone())

    def forward(self, x):
        both = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = both.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
        weights = torch.softmax(scores, dim=-1)
        y = torch.einsum("bhij,bhjd->bihd", weights, v).flatten(2)
        return F.linear(y, self.out_weight, self.out_bias)


def _torch_layer(draw: Draw) -> nn.MultiheadAttention:
    with torch.random.fork_rng(devices=[]):
        return draw.trained(nn.MultiheadAttention(draw.c, draw.h, batch_first=True))


def _torch_reference(draw: Draw) -> Callable[[Tensor], Tensor]:
    layer = _torch_layer(draw)

    def reference(x: Tensor) -> Tensor:
        return layer.to(x.dtype)(x, x, x, need_weights=False)[0]

    return reference


PORTED = Base(
    "port of nn.MultiheadAttention",
    (Ported,),
    lambda names, draw: names["Ported"](_torch_layer(draw)).eval(),
    lambda draw: {**x_ask(draw, None), "like": _torch_reference(draw)},
    x_cases,
    (
        slip("layout-of-fused-rows", "(3, self.heads, -1)).permute(2, 0, 3, 1, 4)",
             "(self.heads, 3, -1)).permute(3, 0, 2, 1, 4)"),
        slip("layout-of-fused-rows", "(3, self.heads, -1)).permute(2, 0, 3, 1, 4)",
             "(3, -1, self.heads)).permute(2, 0, 4, 1, 3)", label="heads last"),
        slip("projections-exchanged", "q, k, v = both", "k, q, v = both"),
        slip("projections-exchanged", "q, k, v = both", "q, v, k = both", label="k and v"),
        slip("bias-missing", "self.in_proj_weight, self.in_proj_bias)", "self.in_proj_weight)"),
        slip("bias-missing", "self.out_weight, self.out_bias)", "self.out_weight)", label="out"),
        slip("weight-transposed", "self.out_weight, self", "self.out_weight.T, self"),
        slip("like-scale", "q.shape[-1] ** 0.5", "8**0.5 * 1.25"),
        slip("scale-by-width", "q.shape[-1] ** 0.5", "x.shape[-1] ** 0.5"),
        slip("no-scale", " / q.shape[-1] ** 0.5", ""),
        slip("heads-merged-by-reshape", 'j,bhjd->bihd", weights, v).flatten(2)',
             'j,bhjd->bhid", weights, v).reshape(x.shape)'),
        slip("gradient-cut", "torch.softmax(scores, dim=-1)",
             "torch.softmax(scores, dim=-1).detach()"),
    ),
)  # fmt: skip


# --- rotary, shared key heads, from Intently's own layer ----------------------------------------


class Llama(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, kv_heads * self.head)
        self.v_proj = nn.Linear(width, kv_heads * self.head)
        self.o_proj = nn.Linear(width, width)

    def rotary(self, x):
        d = x.shape[-1]
        rates = 1.0 / (RATE ** (torch.arange(0, d, 2, dtype=torch.float64) / d))
        angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float64), rates)
        angles = torch.cat([angles, angles], dim=-1).to(x.dtype)[:, None, :]
        turned = torch.cat([-x[..., d // 2 :], x[..., : d // 2]], dim=-1)
        return x * angles.cos() + turned * angles.sin()

    def forward(self, x):
        b, t, c = x.shape
        q = self.rotary(self.q_proj(x).view(b, t, self.heads, self.head))
        k = self.rotary(self.k_proj(x).view(b, t, self.kv_heads, self.head))
        v = self.v_proj(x).view(b, t, self.kv_heads, self.head)
        k = k.repeat_interleave(self.heads // self.kv_heads, dim=2)
        v = v.repeat_interleave(self.heads // self.kv_heads, dim=2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, c))


def _rate(draw: Draw) -> float:
    return draw.random("rate").choice([50.0, 10_000.0])


def _ours(draw: Draw) -> MultiHeadAttention:
    """Intently's layer, trained as drawn."""
    rotary = it.Rotary(draw.d, base=_rate(draw))
    options = AttentionOptions(mask=it.causal(), positions=rotary)
    layer = MultiHeadAttention(
        draw.c, draw.h, kv_heads=draw.g, attention=options, projections=Projections(fused=False)
    )
    return draw.trained(layer)


def _llama(names: dict[str, Any], draw: Draw) -> nn.Module:
    model, ours = names["Llama"](draw.c, draw.h, draw.g), _ours(draw)
    with torch.no_grad():
        for name, theirs in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("out", "o_proj")):
            getattr(model, theirs).weight.copy_(getattr(ours, f"{name}_weight"))
            getattr(model, theirs).bias.copy_(getattr(ours, f"{name}_bias"))
    return model.eval()


LLAMA = Base(
    "port of a rotary layer",
    (Llama,),
    _llama,
    lambda draw: {**x_ask(draw, it.causal()), "like": _ours(draw)},
    x_cases,
    (
        slip("rotary-base", "RATE **", "500000.0 **"),
        slip("rotary-base", "RATE **", "(2 * RATE) **", label="twice"),
        slip("rotary-pairs", "turned = torch.cat([-x[..., d // 2 :], x[..., : d // 2]], dim=-1)",
             "turned = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)",
             "torch.cat([angles, angles], dim=-1)", "angles.repeat_interleave(2, dim=-1)"),
        slip("rotary-pairs", "torch.cat([angles, angles], dim=-1)",
             "angles.repeat_interleave(2, dim=-1)", label="angles only"),
        slip("rotary-direction", "torch.cat([-x[..., d // 2 :], x[..., : d // 2]], dim=-1)",
             "torch.cat([x[..., d // 2 :], -x[..., : d // 2]], dim=-1)"),
        slip("rotation-off-by-one", "torch.arange(x.shape[1], dtype",
             "torch.arange(1, x.shape[1] + 1, dtype", label="both"),
        slip("rotary-over-heads",
             "torch.outer(torch.arange(x.shape[1], dtype=torch.float64), rates)",
             "torch.outer(torch.arange(x.shape[2], dtype=torch.float64), rates)",
             ".to(x.dtype)[:, None, :]", ".to(x.dtype)"),
        slip("keys-not-rotated", "k = self.rotary(self.k_proj(x).view(b, t, self.kv_heads, "
             "self.head))", "k = self.k_proj(x).view(b, t, self.kv_heads, self.head)"),
        slip("key-heads-tiled", "k = k.repeat_interleave(self.heads // self.kv_heads, dim=2)",
             "k = k.repeat(1, 1, self.heads // self.kv_heads, 1)",
             "v = v.repeat_interleave(self.heads // self.kv_heads, dim=2)",
             "v = v.repeat(1, 1, self.heads // self.kv_heads, 1)"),
        slip("like-scale", "is_causal=True", "is_causal=True, scale=0.7 * self.head**-0.5"),
        slip("mask-missing", ", is_causal=True", ""),
        slip("heads-merged-by-reshape", "y.transpose(1, 2).reshape(b, t, c)", "y.reshape(b, t, c)"),
        slip("values-rotated", "v = self.v_proj(x).view(b, t, self.kv_heads, self.head)",
             "v = self.rotary(self.v_proj(x).view(b, t, self.kv_heads, self.head))"),
        slip("gradient-scaled", "q, k, v = q.transpose(1, 2), k",
             "q = 2 * q - q.detach()\n        q, k, v = q.transpose(1, 2), k"),
    ),
    constants=lambda draw: {"RATE": _rate(draw)},
)  # fmt: skip
