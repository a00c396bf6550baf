"""The attention block of diffusers with a processor of the user's own."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.checking.planted.base import Base, slip
from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.functions_of_padding import padding
from benchmarks.checking.planted.observing import Case

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
