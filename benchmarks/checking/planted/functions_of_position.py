"""Functions with a rule of position: windows, ALiBi, softcap with sinks, shared key heads."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import intently as it
from benchmarks.checking.planted.base import Base, slip
from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.functions import named, of_qkv, operands, sizes
from benchmarks.checking.planted.observing import Case

# ruff: noqa: D103 - the code of people who write no docstrings; WINDOW, SINKS are constants

WINDOW, CAP, SINKS, REACH = 3, 3.0, torch.zeros(4), 2


# --- a causal window ----------------------------------------------------------------------------


def windowed(q, k, v):
    t, s = q.shape[-2], k.shape[-2]
    distance = torch.arange(s - t, s)[:, None] - torch.arange(s)
    allowed = (distance >= 0) & (distance < WINDOW)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


WINDOWED = Base(
    "causal window function",
    (windowed,),
    lambda names, draw: names["windowed"],
    lambda draw: {"mask": it.causal() & it.window(draw.window - 1, 0)},
    of_qkv,
    (
        slip("window-left-off-by-one", "< WINDOW", "<= WINDOW", label="one more"),
        slip("window-left-off-by-one", "< WINDOW", "< WINDOW - 1", label="one less"),
        slip("mask-ahead-by-one", "distance >= 0", "distance >= -1"),
        slip("mask-behind-by-one", "distance >= 0", "distance > 0"),
        slip("window-missing", "(distance >= 0) & (distance < WINDOW)", "distance >= 0"),
        slip("mask-missing", "(distance >= 0) & (distance < WINDOW)", "distance < WINDOW"),
        slip("mask-top-left", "torch.arange(s - t, s)", "torch.arange(t)"),
        slip("mask-transposed", "torch.arange(s - t, s)[:, None] - torch.arange(s)",
             "torch.arange(s) - torch.arange(s - t, s)[:, None]"),
        slip("mask-added-as-number", "attn_mask=allowed", "attn_mask=allowed.to(q.dtype)"),
        slip("mask-inverted", "attn_mask=allowed", "attn_mask=~allowed"),
        slip("scaled-twice", "attention(q, k", "attention(q / math.sqrt(q.shape[-1]), k"),
        slip("gradient-cut", "(q, k, v, attn", "(q, k.detach(), v, attn"),
    ),
    constants=lambda draw: {"WINDOW": draw.window},
)  # fmt: skip


# --- a window to both sides ---------------------------------------------------------------------


def local(q, k, v):
    t, s = q.size(-2), k.size(-2)
    i, j = torch.arange(t).view(-1, 1) + s - t, torch.arange(s).view(1, -1)
    near = (j >= i - REACH) & (j <= i + REACH)
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    scores = scores + torch.zeros(t, s, dtype=q.dtype).masked_fill(~near, float("-inf"))
    weights = F.softmax(scores, dim=-1)
    return torch.matmul(weights, v)


LOCAL = Base(
    "local function",
    (local,),
    lambda names, draw: names["local"],
    lambda draw: {"mask": it.window(draw.window, draw.window)},
    of_qkv,
    (
        slip("window-left-off-by-one", "i - REACH", "i - REACH - 1", label="one more"),
        slip("window-left-off-by-one", "j >= i - REACH", "j > i - REACH", label="one less"),
        slip("window-right-off-by-one", "j <= i + REACH", "j < i + REACH", label="one less"),
        slip("window-right-off-by-one", "i + REACH", "i + REACH + 1", label="one more"),
        slip("mask-top-left", " + s - t", ""),
        slip("mask-inverted", "~near", "near"),
        slip("mask-too-weak", 'float("-inf")', "-1.0"),
        slip("mask-missing", "    scores = scores + torch", "    biased = scores + torch"),
        slip("window-missing", "(j >= i - REACH) & (j <= i + REACH)", "j >= i - REACH"),
        slip("no-scale", " / math.sqrt(q.size(-1))", ""),
        slip("scale-by-d", "math.sqrt(q.size(-1))", "q.size(-1)"),
        slip("softmax-over-heads", "dim=-1", "dim=1"),
    ),
    constants=lambda draw: {"REACH": draw.window},
)  # fmt: skip


# --- softcap and sinks, whole or in rows --------------------------------------------------------


def capped(q, k, v, rows=None):
    t, s = q.shape[-2], k.shape[-2]
    if rows is None:
        scores = CAP * torch.tanh(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 / CAP)
        scores = scores.masked_fill(torch.ones(t, s).triu(s - t + 1) == 1, float("-inf"))
        sinks = SINKS.to(q.dtype).view(1, -1, 1, 1).expand(q.shape[0], -1, t, 1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]
        return weights @ v
    parts = []
    for start in range(0, t, rows):
        part = q[:, :, start : start + rows]
        z = torch.einsum("bhid,bhjd->bhij", part, k) / math.sqrt(part.shape[-1])
        z = CAP * torch.tanh(z / CAP)
        place = torch.arange(start, start + part.shape[2])[:, None] + s - t
        z = z.masked_fill(torch.arange(s) > place, -1e30)
        exp = z.exp()
        total = exp.sum(-1, keepdim=True) + SINKS.to(q.dtype).exp()[:, None, None]
        parts.append(exp / total @ v)
    return torch.cat(parts, dim=2)


def _capped_constants(draw: Draw) -> dict[str, Any]:
    cap = 1.0 + draw.random("cap").random()
    return {"CAP": cap, "SINKS": draw.tensor("sinks", draw.h)}


def _capped_reference(draw: Draw) -> Any:
    found = _capped_constants(draw)
    cap, sinks = found["CAP"], found["SINKS"]

    def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return it.attention(q, k, v, mask=it.causal(), softcap=cap, sinks=sinks.to(q.dtype))

    return reference


def _capped_cases(draw: Draw) -> list[Case]:
    in_rows = [
        Case(f"{named('rows', *n)} {rows}", {**operands(draw, *n), "rows": rows})
        for n in sizes(draw)
        for rows in (2, 3)
    ]
    return [*of_qkv(draw), *in_rows]


def _capped_ask(draw: Draw) -> dict[str, Any]:
    return {
        "inputs": operands(draw, draw.b, draw.t, draw.s),
        "mask": it.causal(),
        "like": _capped_reference(draw),
        "same": [{"rows": None}, {"rows": 3}],
    }


CAPPED = Base(
    "function with softcap and sinks",
    (capped,),
    lambda names, draw: names["capped"],
    _capped_ask,
    _capped_cases,
    (
        slip("softcap-in-one-back-end", "        z = CAP * torch.tanh(z / CAP)\n", ""),
        slip("sinks-in-one-back-end", " + SINKS.to(q.dtype).exp()[:, None, None]", ""),
        slip("sinks-in-one-back-end", "torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]",
             "scores.softmax(-1)", label="whole"),
        slip("mask-in-one-back-end", "        z = z.masked_fill(torch.arange(s) > place, -1e30)\n",
             ""),
        slip("mask-top-left", "[:, None] + s - t", "[:, None]"),
        slip("mask-ahead-by-one", "triu(s - t + 1) == 1", "triu(s - t + 2) == 1"),
        slip("mask-behind-by-one", "torch.arange(s) > place", "torch.arange(s) >= place"),
        slip("mask-in-one-back-end", "torch.arange(start, start + part.shape[2])",
             "torch.arange(part.shape[2])", label="rows restart"),
        slip(
            "softcap-after-mask",
            "scores = CAP * torch.tanh(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 / CAP)\n",
            "scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5\n",
            '== 1, float("-inf"))\n',
            '== 1, float("-inf"))\n        scores = CAP * torch.tanh(scores / CAP)\n',
        ),
        slip("no-scale", " / math.sqrt(part.shape[-1])", "", label="in rows"),
        slip("not-normalised", "(-1)[..., :-1]", "(-1)[..., :-1] * (1 + s / 10)"),
        slip("scale-by-d", "** -0.5 / CAP", "** -1.0 / CAP"),
    ),
    constants=_capped_constants,
)  # fmt: skip


# --- key heads shared by query heads ------------------------------------------------------------


def grouped(q, k, v):
    h, g = q.shape[1], k.shape[1]
    k = torch.repeat_interleave(k, h // g, dim=1)
    v = v.repeat_interleave(h // g, dim=1)
    scores = torch.einsum("b h t d, b h s d -> b h t s", q, k) / math.sqrt(k.shape[-1])
    weights = torch.softmax(scores, dim=-1)
    return torch.einsum("b h t s, b h s d -> b h t d", weights, v)


def _shared(draw: Draw, b: int, t: int, s: int) -> dict[str, Tensor]:
    found = operands(draw, b, t, s)
    return {name: x if name == "q" else x[:, : draw.g] for name, x in found.items()}


def _grouped_reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


GROUPED = Base(
    "function with shared key heads",
    (grouped,),
    lambda names, draw: names["grouped"],
    lambda draw: {
        "inputs": _shared(draw, draw.b, draw.t, draw.s),
        "mask": None,
        "like": _grouped_reference,
    },
    lambda draw: [Case(named("shared", *n), _shared(draw, *n)) for n in sizes(draw)],
    (
        slip("key-heads-tiled", "torch.repeat_interleave(k, h // g, dim=1)",
             "k.repeat(1, h // g, 1, 1)", "v.repeat_interleave(h // g, dim=1)",
             "v.repeat(1, h // g, 1, 1)"),
        slip("key-heads-tiled", "v.repeat_interleave(h // g, dim=1)", "v.repeat(1, h // g, 1, 1)",
             label="values only"),
        slip("like-scale", "math.sqrt(k.shape[-1])", "math.sqrt(k.shape[-1] * h)"),
        slip("like-scale", " / math.sqrt(k.shape[-1])", " * 0.125", label="fixed"),
        slip("no-scale", " / math.sqrt(k.shape[-1])", ""),
        slip("softmax-over-heads", "dim=-1", "dim=-3"),
        slip("softmax-over-queries", "dim=-1", "dim=-2"),
        slip("values-are-keys", "weights, v)", "weights, k)"),
        slip("gradient-cut", "k = torch.repeat", "k = k.detach()\n    k = torch.repeat"),
    ),
)  # fmt: skip


# --- ALiBi --------------------------------------------------------------------------------------


def alibi(q, k, v):
    t, s = q.shape[2], k.shape[2]
    slopes = SLOPES.to(q.dtype)[:, None, None]
    distance = torch.arange(s) - (torch.arange(t)[:, None] + s - t)
    scores = q @ k.mT / math.sqrt(q.shape[-1]) + slopes * distance
    scores = scores.masked_fill(distance > 0, float("-inf"))
    return scores.softmax(dim=-1) @ v


SLOPES = torch.ones(4)


def _slopes(draw: Draw) -> Tensor:
    """The slopes of Press et al. 2022 for h heads."""
    m = [2 ** (-8 * i / draw.h) for i in range(1, draw.h + 1)]
    return torch.tensor(m, dtype=torch.float64)


def _alibi_reference(draw: Draw) -> Any:
    def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        bias = it.alibi(slopes=_slopes(draw).to(q.dtype))
        return it.attention(q, k, v, mask=it.causal(), bias=bias)

    return reference


ALIBI = Base(
    "function with ALiBi",
    (alibi,),
    lambda names, draw: names["alibi"],
    lambda draw: {
        "inputs": operands(draw, draw.b, draw.t, draw.s),
        "mask": it.causal(),
        "like": _alibi_reference(draw),
    },
    of_qkv,
    (
        slip("alibi-sign", "+ slopes * distance", "- slopes * distance"),
        slip("alibi-missing", " + slopes * distance", ""),
        slip("alibi-slopes", "SLOPES.to(q.dtype)", "SLOPES.to(q.dtype).flip(0)"),
        slip("alibi-slopes", "SLOPES.to(q.dtype)", "SLOPES.to(q.dtype).mean().expand(q.shape[1])",
             label="one for all heads"),
        slip("mask-top-left", "[:, None] + s - t)", "[:, None])"),
        slip("mask-ahead-by-one", "distance > 0", "distance > 1"),
        slip("mask-missing", "scores = scores.masked_fill", "scores.masked_fill"),
        slip("mask-too-weak", 'float("-inf")', "-10.0"),
        slip("bias-scaled", "q @ k.mT / math.sqrt(q.shape[-1]) + slopes * distance",
             "(q @ k.mT + slopes * distance) / math.sqrt(q.shape[-1])"),
        slip("no-scale", " / math.sqrt(q.shape[-1])", ""),
        slip("softmax-over-batch", "softmax(dim=-1)", "softmax(dim=0)"),
    ),
    constants=lambda draw: {"SLOPES": _slopes(draw)},
)  # fmt: skip
