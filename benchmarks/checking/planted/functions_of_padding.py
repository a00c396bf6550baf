"""Functions that are told of padding: which keys pad, or how long each sequence is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import intently as it
from benchmarks.checking.planted.base import Base, slip
from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.functions import named, operands, sizes
from benchmarks.checking.planted.observing import Case

# ruff: noqa: D103 - the functions are read as the code of people who write no docstrings


def padding(draw: Draw, b: int, s: int) -> Tensor:
    """(b, s), True where a key pads; the first sequence is whole."""
    return torch.arange(s) >= draw.lengths(b, s)[:, None]


# --- heads folded into the batch ----------------------------------------------------------------


def folded(q, k, v, pad=None):
    b, h, t, d = q.shape
    q, k, v = (x.reshape(b * h, -1, d) for x in (q, k, v))
    scores = torch.bmm(q * d**-0.5, k.transpose(1, 2))
    if pad is not None:
        pad = pad[:, None, :].repeat_interleave(h, dim=0)
        scores = scores.masked_fill(pad, float("-inf"))
    weights = F.softmax(scores, dim=-1)
    return torch.bmm(weights, v).view(b, h, t, d)


def _folded_cases(draw: Draw) -> list[Case]:
    found = []
    for b, t, s in sizes(draw):
        given = operands(draw, b, t, s)
        found.append(Case(named("qkv", b, t, s), given))
        found.append(Case(named("pad", b, t, s), {**given, "pad": padding(draw, b, s)}))
    return found


def _folded_ask(draw: Draw) -> dict[str, Any]:
    given = operands(draw, draw.b, draw.t, draw.t)
    return {
        "inputs": {**given, "pad": padding(draw, draw.b, draw.t)},
        "arguments": {"pad": "ignore"},
    }


FOLDED = Base(
    "function with heads folded into the batch",
    (folded,),
    lambda names, draw: names["folded"],
    _folded_ask,
    _folded_cases,
    (
        slip("mask-head-order", "repeat_interleave(h, dim=0)", "repeat(h, 1, 1)"),
        slip("mask-on-query-axis", "pad[:, None, :]", "pad[:, :t, None]"),
        slip("mask-inverted", "masked_fill(pad", "masked_fill(~pad"),
        slip("padding-attended", "scores = scores.masked_fill(", "scores.masked_fill("),
        slip("mask-too-weak", 'float("-inf")', "-10.0"),
        slip("mask-added-as-number", 'scores.masked_fill(pad, float("-inf"))', "scores + pad"),
        slip("softmax-over-batch", "dim=-1", "dim=0"),
        slip("softmax-over-queries", "dim=-1", "dim=1"),
        slip("no-scale", "q * d**-0.5", "q"),
        slip("scale-by-width", "d**-0.5", "(h * d) ** -0.5"),
        slip("scaled-twice", "scores = torch.bmm(", "scores = d**-0.5 * torch.bmm("),
        slip("heads-merged-by-reshape", ".view(b, h, t, d)", ".view(h, b, t, d).transpose(0, 1)"),
        slip("input-changed", "    b, h, t, d = q.shape\n",
             "    b, h, t, d = q.shape\n    k.sub_(k.mean(-2, keepdim=True))\n"),
        slip("gradient-scaled", "torch.bmm(weights, v)",
             "torch.bmm(weights, v.detach() + 0.5 * (v - v.detach()))"),
    ),
)  # fmt: skip


# --- lengths, one head --------------------------------------------------------------------------


def by_lengths(q, k, v, lengths):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    allowed = torch.arange(k.shape[1]) < lengths[:, None]
    scores = torch.where(allowed[:, None, :], scores, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    return torch.matmul(weights, v)


def _given(draw: Draw, b: int, t: int, s: int) -> dict[str, Tensor]:
    return {**operands(draw, b, t, s, heads=False), "lengths": draw.lengths(b, s)}


def _lengths_cases(draw: Draw) -> list[Case]:
    return [Case(named("lengths", *n), _given(draw, *n)) for n in sizes(draw)]


def _lengths_ask(draw: Draw) -> dict[str, Any]:
    inputs = _given(draw, draw.b, draw.t, draw.s)
    return {
        "inputs": inputs,
        "arguments": {"lengths": "lengths"},
        "mask": it.padding(inputs["lengths"]),
    }


LENGTHS = Base(
    "function of lengths",
    (by_lengths,),
    lambda names, draw: names["by_lengths"],
    _lengths_ask,
    _lengths_cases,
    (
        slip("lengths-off-by-one", "< lengths", "<= lengths", label="one more"),
        slip("lengths-off-by-one", "< lengths[:, None]", "< lengths[:, None] - 1",
             label="one less"),
        slip("mask-inverted", "< lengths", ">= lengths"),
        slip("padding-attended", "scores = torch.where(", "masked = torch.where("),
        slip("mask-too-weak", 'float("-inf")', "-10.0"),
        slip(
            "mask-after-softmax",
            '    scores = torch.where(allowed[:, None, :], scores, float("-inf"))\n',
            "",
            "torch.softmax(scores, dim=-1)",
            "torch.softmax(scores, dim=-1) * allowed[:, None, :]",
        ),
        slip(
            "mask-after-softmax-renormalised",
            '    scores = torch.where(allowed[:, None, :], scores, float("-inf"))\n',
            "",
            "torch.softmax(scores, dim=-1)",
            "F.normalize(torch.softmax(scores, dim=-1) * allowed[:, None, :], p=1, dim=-1)",
        ),
        slip("mask-batch-rows", "< lengths[:, None]", "< lengths.flip(0)[:, None]"),
        slip("mask-batch-rows", "< lengths[:, None]", "< lengths.max().view(1, 1)",
             label="longest for all"),
        slip("no-scale", " / q.shape[-1] ** 0.5", ""),
        slip("scale-by-d", "q.shape[-1] ** 0.5", "q.shape[-1]"),
        slip("softmax-over-batch", "dim=-1", "dim=0"),
        slip("rounded", "torch.matmul(weights, v)",
             "torch.matmul(weights.bfloat16().to(v.dtype), v)"),
    ),
)  # fmt: skip


# --- rows that may see nothing ------------------------------------------------------------------


def empty_rows(q, k, v, attn_mask):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(attn_mask.logical_not(), float("-inf"))
    weights = scores.softmax(-1).nan_to_num(0.0)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def _some_rows(draw: Draw, b: int, t: int, s: int) -> dict[str, Tensor]:
    allowed = draw.tensor(f"rows{b}{t}{s}", b, 1, t, s) > 0
    allowed[..., 0] = True
    if t > 1:
        allowed[..., 1, :] = False
    return {**operands(draw, b, t, s), "attn_mask": allowed}


def _empty_ask(draw: Draw) -> dict[str, Any]:
    inputs = _some_rows(draw, draw.b, draw.t, draw.s)
    return {"inputs": inputs, "arguments": {"attn_mask": "attend"}}


EMPTY_ROWS = Base(
    "function whose mask may empty a row",
    (empty_rows,),
    lambda names, draw: names["empty_rows"],
    _empty_ask,
    lambda draw: [Case(named("rows", *n), _some_rows(draw, *n)) for n in sizes(draw)],
    (
        slip("nan-for-empty-row", ".nan_to_num(0.0)", ""),
        slip("mean-for-empty-row", 'float("-inf")', "-1e9"),
        slip("mask-inverted", ".logical_not()", ""),
        slip("mask-too-weak", 'float("-inf")', "-1.0"),
        slip("scaled-twice", "bhij\", q, k)", "bhij\", q, k) / math.sqrt(q.shape[-1])"),
        slip("softmax-over-queries", "softmax(-1)", "softmax(-2)"),
        slip("not-normalised", "scores.softmax(-1).nan_to_num(0.0)", "scores.exp()"),
        slip("mask-missing", 'scores = scores.masked_fill(attn_mask.logical_not(), float("-inf"))',
             'scores.masked_fill(attn_mask.logical_not(), float("-inf"))'),
    ),
)  # fmt: skip
