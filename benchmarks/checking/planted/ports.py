"""diffusers' block with a processor of the user's own, and layers that should be another's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import intently as it
from benchmarks.checking.planted.base import Base, slip
from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.functions import padding
from benchmarks.checking.planted.modules import x_ask, x_cases
from benchmarks.checking.planted.observing import Case
from intently.nn import AttentionOptions, MultiHeadAttention, Projections

# ruff: noqa: D101 - the processors are read as the code of people who write no docstrings


class Processor:
    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None):
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        b, s, _ = context.shape
        if attention_mask is not None:
            attention_mask = attn.prepare_attention_mask(attention_mask, s, b)
            attention_mask = attention_mask.view(b, attn.heads, -1, s)
        q, k, v = attn.to_q(hidden_states), attn.to_k(context), attn.to_v(context)
        q = q.view(b, -1, attn.heads, q.shape[-1] // attn.heads).transpose(1, 2)
        k = k.view(b, -1, attn.heads, k.shape[-1] // attn.heads).transpose(1, 2)
        v = v.view(b, -1, attn.heads, v.shape[-1] // attn.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)
        y = y.transpose(1, 2).reshape(b, -1, attn.heads * q.shape[-1])
        return attn.to_out[1](attn.to_out[0](y))


class ByHand:
    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None):
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query = attn.head_to_batch_dim(attn.to_q(hidden_states))
        key = attn.head_to_batch_dim(attn.to_k(context))
        value = attn.head_to_batch_dim(attn.to_v(context))
        scores = torch.bmm(query, key.transpose(1, 2)) * attn.scale
        if attention_mask is not None:
            mask = attention_mask.repeat_interleave(attn.heads, dim=0)
            scores = scores + mask
        weights = F.softmax(scores, dim=-1)
        y = attn.batch_to_head_dim(torch.bmm(weights, value))
        return attn.to_out[1](attn.to_out[0](y))


def _width(draw: Draw) -> int:
    return draw.c + 4


def _block(draw: Draw, processor: Any, cross: bool) -> Any:
    from diffusers.models.attention_processor import Attention

    context = _width(draw) if cross else None
    block = Attention(
        query_dim=draw.c,
        cross_attention_dim=context,
        heads=draw.h,
        dim_head=draw.d,
        bias=True,
        processor=processor,
    )
    return draw.trained(block)


def _states(draw: Draw, b: int, t: int, s: int, masked: bool = True) -> dict[str, Any]:
    found = {
        "hidden_states": draw.tensor(f"x{b}{t}", b, t, draw.c),
        "encoder_hidden_states": draw.tensor(f"context{b}{s}", b, s, _width(draw)),
    }
    if masked:
        found["attention_mask"] = padding(draw, b, s)[:, None].float() * -10000.0
    return found


def _cross_cases(draw: Draw) -> list[Case]:
    b, t, s = draw.b, draw.t, draw.s
    return [
        Case("bare", _states(draw, b, t, s, masked=False)),
        Case("padded", _states(draw, b, t, s)),
        Case("square", _states(draw, b, s, s)),
        Case("one item", _states(draw, 1, s, t)),
    ]


def _self(draw: Draw, b: int, t: int, masked: bool = True) -> dict[str, Any]:
    found = _states(draw, b, t, t, masked)
    return {name: x for name, x in found.items() if name != "encoder_hidden_states"}


def _self_cases(draw: Draw) -> list[Case]:
    b, t = draw.b, draw.t
    return [
        Case("bare", _self(draw, b, t, masked=False)),
        Case("padded", _self(draw, b, t)),
        Case("one item", _self(draw, 1, draw.s)),
    ]


def _ask(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"inputs": inputs, "arguments": {"attention_mask": "add"}}


CROSS_BLOCK = Base(
    "diffusers cross-attention block",
    (Processor,),
    lambda names, draw: _block(draw, names["Processor"](), cross=True),
    lambda draw: _ask(_states(draw, draw.b, draw.t, draw.s)),
    _cross_cases,
    (
        slip("padding-attended-in-cross", ", attn_mask=attention_mask", ""),
        slip("mask-inverted", "attn_mask=attention_mask",
             "attn_mask=None if attention_mask is None else -10000.0 - attention_mask"),
        slip("mask-head-order",
             "attention_mask = attn.prepare_attention_mask(attention_mask, s, b)",
             "attention_mask = attention_mask.repeat(attn.heads, 1, 1)"),
        slip("values-are-keys", "attn.to_v(context)", "attn.to_k(context)"),
        slip("projections-exchanged", "attn.to_k(context), attn.to_v(context)",
             "attn.to_v(context), attn.to_k(context)"),
        slip("scaled-twice", "attention(q, k, v", "attention(q * attn.scale, k, v"),
        slip("scale-by-d", "attn_mask=attention_mask",
             "attn_mask=attention_mask, scale=1 / q.shape[-1]"),
        slip("heads-merged-by-reshape", "y.transpose(1, 2).reshape(", "y.reshape("),
        slip("heads-split-by-reshape",
             "k.view(b, -1, attn.heads, k.shape[-1] // attn.heads).transpose(1, 2)",
             "k.view(b, attn.heads, -1, k.shape[-1] // attn.heads)"),
        slip("bias-missing", "attn.to_out[0](y)", "F.linear(y, attn.to_out[0].weight)"),
        slip("gradient-cut", "attention(q, k, v", "attention(q, k.detach(), v"),
        slip("mask-too-weak", "attn_mask=attention_mask",
             "attn_mask=None if attention_mask is None else attention_mask.clamp(min=-1.0)"),
        slip("mask-batch-rows", ".view(b, attn.heads, -1, s)", ".view(b, attn.heads, -1, s)[:1]"),
    ),
)  # fmt: skip

SELF_BLOCK = Base(
    "diffusers self-attention block",
    (ByHand,),
    lambda names, draw: _block(draw, names["ByHand"](), cross=False),
    lambda draw: _ask(_self(draw, draw.b, draw.t)),
    _self_cases,
    (
        slip("mask-head-order", "repeat_interleave(attn.heads, dim=0)", "repeat(attn.heads, 1, 1)"),
        slip("mask-on-query-axis", "scores + mask", "scores + mask.mT"),
        slip("padding-attended", "            scores = scores + mask\n", ""),
        slip("no-scale", " * attn.scale", ""),
        slip("scaled-twice", " * attn.scale", " * attn.scale**2"),
        slip("softmax-over-queries", "dim=-1", "dim=1"),
        slip("softmax-over-batch", "dim=-1", "dim=0"),
        slip("not-normalised", "F.softmax(scores, dim=-1)", "scores.exp()"),
        slip("heads-merged-by-reshape", "attn.batch_to_head_dim(torch.bmm(weights, value))",
             "torch.bmm(weights, value).reshape(hidden_states.shape)"),
        slip("heads-split-by-reshape", "value = attn.head_to_batch_dim(attn.to_v(context))",
             "value = attn.to_v(context).reshape(key.shape)"),
        slip("mask-twice", "scores + mask", "scores + mask + mask"),
        slip("rounded", "F.softmax(scores, dim=-1)",
             "F.softmax(scores.half(), dim=-1).to(key.dtype)"),
        slip("dropout-in-eval", "torch.bmm(weights, value)",
             "torch.bmm(F.dropout(weights, 0.1), value)"),
        slip("input-changed", "        query = attn",
             "        hidden_states -= hidden_states.mean(-1, True)\n        query = attn"),
    ),
)  # fmt: skip


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
