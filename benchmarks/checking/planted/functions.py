"""Functions of queries, keys and values, some told of padding, and the slips made in them."""

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

# ruff: noqa: D103 - the functions are read as the code of people who write no docstrings


def operands(draw: Draw, b: int, t: int, s: int, heads: bool = True) -> dict[str, Tensor]:
    """Queries (b, h, t, d), keys and values (b, h, s, d)."""
    h = (draw.h,) if heads else ()
    shapes = {"q": (b, *h, t, draw.d), "k": (b, *h, s, draw.d), "v": (b, *h, s, draw.d)}
    return {name: draw.tensor(f"{name}{b}{t}{s}", *shape) for name, shape in shapes.items()}


def sizes(draw: Draw) -> list[tuple[int, int, int]]:
    """(b, t, s): square, more keys than queries, one query, and one item."""
    return [
        (draw.b, draw.t, draw.t),
        (draw.b, draw.t, draw.s),
        (draw.b, 1, draw.s),
        (1, draw.t, draw.s),
    ]


def named(kind: str, b: int, t: int, s: int) -> str:
    """The name of a case."""
    return f"{kind} b={b} t={t} s={s}"


def of_qkv(draw: Draw) -> list[Case]:
    """Cases of a function of q, k and v alone."""
    return [Case(named("qkv", *n), operands(draw, *n)) for n in sizes(draw)]


# --- a mask passed ---------------------------------------------------------------------------


def masked(q, k, v, mask=None):
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    return torch.matmul(weights, v)


def _masks(draw: Draw, b: int, t: int, s: int) -> Tensor:
    """A mask (b, 1, t, s) with a random half of the keys, and always the first."""
    random = draw.tensor(f"mask{b}{t}{s}", b, 1, t, s) > 0
    random[..., 0] = True
    return random


def _masked_cases(draw: Draw) -> list[Case]:
    with_mask = [
        Case(named("mask", *n), {**operands(draw, *n), "mask": _masks(draw, *n)})
        for n in sizes(draw)
    ]
    return [*of_qkv(draw), *with_mask]


def _masked_ask(draw: Draw) -> dict[str, Any]:
    n = (draw.b, draw.t, draw.t)
    inputs = {**operands(draw, *n), "mask": torch.ones(draw.t, draw.t, dtype=torch.bool).tril()}
    return {"inputs": inputs, "arguments": {"mask": "attend"}}


MASKED = Base(
    "function with a mask",
    (masked,),
    lambda names, draw: names["masked"],
    _masked_ask,
    _masked_cases,
    (
        slip("no-scale", " / math.sqrt(q.size(-1))", ""),
        slip("scale-by-d", "math.sqrt(q.size(-1))", "q.size(-1)"),
        slip("softmax-over-queries", "dim=-1", "dim=-2"),
        slip("softmax-over-heads", "dim=-1", "dim=1"),
        slip("softmax-over-batch", "dim=-1", "dim=0"),
        slip("not-normalised", "torch.softmax(scores, dim=-1)", "torch.sigmoid(scores)"),
        slip("mask-inverted", "~mask", "mask"),
        slip("mask-missing", "scores = scores.masked_fill(", "scores.masked_fill("),
        slip("mask-added-as-number", 'scores.masked_fill(~mask, float("-inf"))', "scores + mask"),
        slip("mask-too-weak", 'float("-inf")', "-10.0", label="10"),
        slip("mask-too-weak", 'float("-inf")', "-1.0", label="1"),
        slip("mask-too-weak", 'float("-inf")', "1e-9", label="tiny"),
        slip(
            "mask-after-softmax",
            '        scores = scores.masked_fill(~mask, float("-inf"))\n'
            "    weights = torch.softmax(scores, dim=-1)\n",
            "        weights = torch.softmax(scores, dim=-1).masked_fill(~mask, 0.0)\n"
            "    else:\n"
            "        weights = torch.softmax(scores, dim=-1)\n",
        ),
        slip(
            "mask-after-softmax-renormalised",
            '        scores = scores.masked_fill(~mask, float("-inf"))\n'
            "    weights = torch.softmax(scores, dim=-1)\n",
            "        weights = torch.softmax(scores, dim=-1) * mask\n"
            "        weights = weights / weights.sum(-1, keepdim=True)\n"
            "    else:\n"
            "        weights = torch.softmax(scores, dim=-1)\n",
        ),
        slip(
            "mask-twice",
            '        scores = scores.masked_fill(~mask, float("-inf"))\n',
            '        scores = scores.masked_fill(~mask, float("-inf"))\n'
            '        scores = scores.masked_fill(mask == 0, float("-inf"))\n',
        ),
        slip("gradient-cut", "torch.matmul(weights, v)", "torch.matmul(weights.detach(), v)"),
        slip("values-are-keys", "torch.matmul(weights, v)", "torch.matmul(weights, k)"),
        slip("rounded", "torch.softmax(scores, dim=-1)", "scores.half().softmax(-1).to(v.dtype)"),
    ),
)


# --- causal, written with einsum ----------------------------------------------------------------


def causal_einsum(q, k, v):
    t, s = q.shape[2], k.shape[2]
    q = q * q.shape[-1] ** -0.5
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    future = torch.ones(t, s, dtype=torch.bool).triu(s - t + 1)
    scores = scores.masked_fill(future, float("-inf"))
    scores = scores - scores.amax(dim=-1, keepdim=True)
    weights = scores.exp()
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def _causal_ask(draw: Draw) -> dict[str, Any]:
    return {"mask": it.causal()}


CAUSAL = Base(
    "causal function with einsum",
    (causal_einsum,),
    lambda names, draw: names["causal_einsum"],
    _causal_ask,
    of_qkv,
    (
        slip("mask-top-left", "triu(s - t + 1)", "triu(1)"),
        slip("mask-ahead-by-one", "triu(s - t + 1)", "triu(s - t + 2)"),
        slip("mask-behind-by-one", "triu(s - t + 1)", "triu(s - t)"),
        slip("mask-transposed", "triu(s - t + 1)", "tril(s - t - 1)"),
        slip("mask-inverted", "masked_fill(future", "masked_fill(~future"),
        slip("mask-missing", '    scores = scores.masked_fill(future, float("-inf"))\n', ""),
        slip("mask-too-weak", 'float("-inf")', "-10.0"),
        slip("mask-added-as-number", 'scores.masked_fill(future, float("-inf"))',
             "scores + ~future"),
        slip(
            "mask-after-softmax",
            '    scores = scores.masked_fill(future, float("-inf"))\n',
            "",
            "weights / weights.sum(dim=-1, keepdim=True)",
            "(weights / weights.sum(dim=-1, keepdim=True)).masked_fill(future, 0.0)",
        ),
        slip(
            "mask-after-softmax-renormalised",
            '    scores = scores.masked_fill(future, float("-inf"))\n',
            "",
            "weights = scores.exp()",
            "weights = scores.exp().masked_fill(future, 0.0)",
        ),
        slip("softmax-over-queries", "weights.sum(dim=-1", "weights.sum(dim=-2"),
        slip("not-normalised", "    weights = weights / weights.sum(dim=-1, keepdim=True)\n", ""),
        slip("scaled-twice", "bhij\", q, k)", "bhij\", q, k) * k.shape[-1] ** -0.5"),
        slip("scale-by-d", "** -0.5", "** -1.0"),
        slip("no-scale", "    q = q * q.shape[-1] ** -0.5\n", ""),
        slip("input-changed", "q = q * q.shape[-1] ** -0.5", "q *= q.shape[-1] ** -0.5"),
        slip("gradient-cut", "weights / weights.sum", "weights / weights.detach().sum"),
        slip("gradient-cut", "amax(dim=-1, keepdim=True)", "amax(dim=-1, keepdim=True).detach()",
             label="of the maximum"),
    ),
)  # fmt: skip


# --- an additive mask, heads on the third axis --------------------------------------------------


def biased(query, key, value, bias=None):
    scores = torch.einsum("bthd,bshd->bhts", query, key) / math.sqrt(query.shape[-1])
    if bias is not None:
        scores = scores + bias
    weights = scores.softmax(-1)
    return torch.einsum("bhts,bshd->bthd", weights, value)


def _heads_last(draw: Draw, b: int, t: int, s: int) -> dict[str, Tensor]:
    found = operands(draw, b, t, s)
    words = {"q": "query", "k": "key", "v": "value"}
    return {words[name]: x.transpose(1, 2).contiguous() for name, x in found.items()}


def _bias(draw: Draw, b: int, t: int, s: int) -> Tensor:
    """Finite numbers per head, −∞ for keys after the query."""
    bias = draw.tensor(f"bias{t}{s}", 1, draw.h, t, s)
    return bias.masked_fill(torch.ones(t, s, dtype=torch.bool).triu(s - t + 1), -torch.inf)


def _biased_cases(draw: Draw) -> list[Case]:
    given = [(n, _heads_last(draw, *n)) for n in sizes(draw)]
    bare = [Case(named("bshd", *n), x) for n, x in given]
    return [*bare, *(Case(named("bias", *n), {**x, "bias": _bias(draw, *n)}) for n, x in given)]


def _biased_ask(draw: Draw) -> dict[str, Any]:
    n = (draw.b, draw.t, draw.s)
    inputs = {**_heads_last(draw, *n), "bias": _bias(draw, *n)}
    return {"inputs": inputs, "arguments": {"bias": "add"}}


BIASED = Base(
    "function with an additive mask",
    (biased,),
    lambda names, draw: names["biased"],
    _biased_ask,
    _biased_cases,
    (
        slip("no-scale", " / math.sqrt(query.shape[-1])", ""),
        slip("scale-by-width", "math.sqrt(query.shape[-1])",
             "math.sqrt(query.shape[-1] * query.shape[-2])"),
        slip("mask-twice", "scores + bias", "scores + bias + bias"),
        slip("mask-missing", "scores = scores + bias", "scores + bias"),
        slip("mask-inverted", "scores + bias", "scores - bias.clamp(min=-1e4)"),
        slip("bias-scaled", " / math.sqrt(query.shape[-1])", "",
             "scores.softmax(-1)", "(scores / math.sqrt(query.shape[-1])).softmax(-1)"),
        slip("softmax-over-heads", "scores.softmax(-1)", "scores.softmax(1)"),
        slip("softmax-over-queries", "scores.softmax(-1)", "scores.softmax(2)"),
        slip("not-normalised", "scores.softmax(-1)", "scores.exp()"),
        slip("mask-head-order", "scores + bias", "scores + bias.flip(1)"),
        slip(
            "heads-merged-by-reshape",
            'torch.einsum("bhts,bshd->bthd", weights, value)',
            'torch.einsum("bhts,bshd->bhtd", weights, value).reshape(query.shape)',
        ),
        slip("gradient-cut", "scores = scores + bias", "scores = scores + bias.detach()"),
    ),
)  # fmt: skip


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
