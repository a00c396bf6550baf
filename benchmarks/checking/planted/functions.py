"""Functions of queries, keys and values: causal with two back-ends, and local with padding."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import intently as it
from benchmarks.checking.planted.base import Base, slip
from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.observing import Case

# ruff: noqa: D103 - the bases are the code of people who write no docstrings

CAP, SINKS, REACH = 3.0, torch.zeros(4), 2


def operands(draw: Draw, b: int, t: int, s: int) -> dict[str, Tensor]:
    """Queries (b, h, t, d), keys and values (b, h, s, d)."""
    return {n: draw.tensor(n, b, draw.h, t if n == "q" else s, draw.d) for n in "qkv"}


def sizes(draw: Draw) -> list[tuple[int, int, int]]:
    """(b, t, s): square, more keys than queries, one query, and one item."""
    b, t, s = draw.b, draw.t, draw.s
    return [(b, t, t), (b, t, s), (b, 1, s), (1, t, s)]


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


def _constants(draw: Draw) -> dict[str, Any]:
    return {"CAP": 1.0 + draw.random("cap").random(), "SINKS": draw.tensor("sinks", draw.h)}


def _reference(draw: Draw) -> Any:
    cap, sinks = _constants(draw).values()

    def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return it.attention(q, k, v, mask=it.causal(), softcap=cap, sinks=sinks.to(q.dtype))

    return reference


CAPPED = Base(
    "causal function with two back-ends",
    (capped,),
    lambda names, draw: names["capped"],
    lambda draw: {
        "inputs": operands(draw, draw.b, draw.t, draw.s), "mask": it.causal(),
        "like": _reference(draw), "same": [{"rows": None}, {"rows": 3}],
    },
    lambda draw: [
        Case(f"{n} {rows}", operands(draw, *n) | ({"rows": rows} if rows else {}))
        for n in sizes(draw) for rows in (None, 2, 3)
    ],
    (
        slip("softcap-in-one-back-end", "        z = CAP * torch.tanh(z / CAP)\n", ""),
        slip("sinks-in-one-back-end", " + SINKS.to(q.dtype).exp()[:, None, None]", ""),
        slip("mask-top-left", "[:, None] + s - t", "[:, None]"),
        slip("mask-ahead-by-one", "triu(s - t + 1) == 1", "triu(s - t + 2) == 1"),
        slip("mask-behind-by-one", "torch.arange(s) > place", "torch.arange(s) >= place"),
        slip("mask-inverted", "triu(s - t + 1) == 1", "triu(s - t + 1) == 0"),
        slip("mask-missing", "        scores = scores.masked_fill(", "        scores.masked_fill("),
        slip("mask-too-weak", 'float("-inf")', "-10.0"),
        slip("mask-added-as-number",
             'scores.masked_fill(torch.ones(t, s).triu(s - t + 1) == 1, float("-inf"))',
             "scores + (torch.ones(t, s).triu(s - t + 1) == 0)"),
        slip("mask-after-softmax", ' == 1, float("-inf"))', " > 1, 0.0)",
             "        return weights @ v",
             "        weights = weights * (torch.arange(s) <= torch.arange(t)[:, None] + s - t)\n"
             "        return weights @ v"),
        slip("softcap-after-mask", "CAP * torch.tanh(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5"
             " / CAP)", "q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5", '== 1, float("-inf"))\n',
             '== 1, float("-inf"))\n        scores = CAP * torch.tanh(scores / CAP)\n'),
        slip("no-scale", " / math.sqrt(part.shape[-1])", ""),
        slip("scale-by-d", "** -0.5 / CAP", "** -1.0 / CAP"),
        slip("like-scale", "** -0.5 / CAP", "** -0.5 * 1.25 / CAP"),
        slip("not-normalised", "(-1)[..., :-1]", "(-1)[..., :-1] * (1 + s / 10)"),
        slip("softmax-over-queries", "dim=-1).softmax(-1)", "dim=-1).softmax(-2)"),
        slip("rounded", "scores, sinks], dim=-1).softmax(-1)",
             "scores, sinks], dim=-1).half().softmax(-1).to(v.dtype)"),
        slip("values-are-keys", "return weights @ v", "return weights @ k"),
        slip("input-changed", "    t, s = q.shape[-2], k.shape[-2]\n",
             "    t, s = q.shape[-2], k.shape[-2]\n    k.sub_(k.mean(-2, keepdim=True))\n"),
    ),
    constants=_constants,
)  # fmt: skip


def folded(q, k, v, pad=None):
    b, h, t, d = q.shape
    s = k.shape[2]
    q, k, v = (x.reshape(b * h, -1, d) for x in (q, k, v))
    scores = torch.bmm(q * d**-0.5, k.transpose(1, 2))
    distance = torch.arange(s) - torch.arange(s - t, s)[:, None]
    allowed = (distance >= -REACH) & (distance <= REACH)
    if pad is not None:
        allowed = allowed & ~pad[:, None, :].repeat_interleave(h, dim=0)
    scores = scores.masked_fill(~allowed, float("-inf"))
    weights = F.softmax(scores, dim=-1).nan_to_num(0.0)
    return torch.bmm(weights, v).view(b, h, t, d)


def _padded(draw: Draw, b: int, t: int, s: int, empty: bool = False) -> dict[str, Tensor]:
    pad = draw.padding(b, s)
    pad[-1] |= empty
    return {**operands(draw, b, t, s), "pad": pad}


FOLDED = Base(
    "local function with padding",
    (folded,),
    lambda names, draw: names["folded"],
    lambda draw: {
        "inputs": _padded(draw, 3, draw.t, draw.t, True), "arguments": {"pad": "ignore"},
        "mask": it.window(draw.window, draw.window),
    },
    lambda draw: [
        *(Case(f"{n}", operands(draw, *n)) for n in sizes(draw)),
        *(Case(f"{n} padded", _padded(draw, *n)) for n in sizes(draw)),
        Case("an item that pads", _padded(draw, 3, draw.t, draw.t, True)),
    ],
    (
        slip("window-left-off-by-one", ">= -REACH", ">= -REACH - 1"),
        slip("window-right-off-by-one", "<= REACH", "<= REACH + 1"),
        slip("window-missing", "(distance >= -REACH) & (distance <= REACH)", "distance >= -REACH"),
        slip("mask-head-order", "repeat_interleave(h, dim=0)", "repeat(h, 1, 1)"),
        slip("mask-on-query-axis", "pad[:, None, :]", "pad[:, :t, None]"),
        slip("mask-batch-rows", "pad[:, None, :]", "pad.flip(0)[:, None, :]"),
        slip("mask-after-softmax-renormalised",
             '    scores = scores.masked_fill(~allowed, float("-inf"))\n', "",
             "F.softmax(scores, dim=-1).nan_to_num(0.0)",
             "F.normalize(F.softmax(scores, dim=-1) * allowed, p=1, dim=-1)"),
        slip("padding-attended", "        allowed = allowed & ~pad", "        _ = allowed & ~pad"),
        slip("nan-for-empty-row", ".nan_to_num(0.0)", ""),
        slip("mean-for-empty-row", 'float("-inf")', "-1e9"),
        slip("softmax-over-batch", "dim=-1", "dim=0"),
        slip("scale-by-width", "d**-0.5", "(h * d) ** -0.5"),
        slip("scaled-twice", "scores = torch.bmm(", "scores = d**-0.5 * torch.bmm("),
        slip("heads-split-by-reshape", "x.reshape(b * h", "x.transpose(1, 2).reshape(b * h"),
        slip("gradient-scaled", "torch.bmm(weights, v)",
             "torch.bmm(weights, v.detach() + 0.5 * (v - v.detach()))"),
    ),
    constants=lambda draw: {"REACH": draw.window},
)  # fmt: skip
