"""Functions of q, k and v, PyTorch's own and as people write them, and the styles of breadth."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import intently as it
from benchmarks.breadth import styles
from benchmarks.checking.right import Case, lower, normal, real

B, H, T, S, D = 2, 4, 6, 9, 8
FUSED = F.scaled_dot_product_attention
CAUSAL, WINDOW, PADDED = it.causal(), it.causal() & it.window(3, 0), real(B, S)


def _qkv(names: Any = "qkv", s: int = T, g: int = H) -> dict[str, Tensor]:
    shapes = (B, H, T, D), (B, g, s, D), (B, g, s, D)
    return {n: normal(*shape, seed=i) for i, (n, shape) in enumerate(zip(names, shapes))}


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / q.shape[-1] ** 0.5


def _attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, bias: Tensor | float = 0) -> Tensor:
    return (_scores(q, k) + bias).masked_fill(hidden, -torch.inf).softmax(-1) @ v


def _back(q: Tensor, k: Tensor) -> Tensor:
    """How many steps before a query a key stands."""
    return torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])


def _slopes(h: int) -> Tensor:
    return (2.0 ** -(8.0 / h * torch.arange(1, h + 1)))[:, None, None]


def _rotated(x: Tensor) -> Tensor:
    d = x.shape[-1]
    rates = 10_000.0 ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
    angle = (torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * rates).repeat(1, 2)
    a, b = x.chunk(2, -1)
    return x * angle.cos() + torch.cat([-b, a], -1) * angle.sin()


def _heads_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bihd,bjhd->bhij", q * q.shape[-1] ** -0.5, k)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)


def _projected(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor) -> Tensor:
    q, k, v = ((x @ w).unflatten(-1, (H, -1)).transpose(1, 2) for w in (wq, wk, wv))
    return FUSED(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def _in_numpy(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a, b, c = (x.detach().numpy() for x in (q, k, v))
    e = np.exp(a @ np.swapaxes(b, -1, -2) / a.shape[-1] ** 0.5)
    return torch.from_numpy(e / e.sum(-1, keepdims=True) @ c)


def _padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return _attend(q, k, v, ~mask[:, None, None, :])


def _ignored(q: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> Tensor:
    return _attend(q, k, v, padding[:, None, None, :])


def _cut(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    return _attend(q, k, v, torch.arange(k.shape[-2]) >= lengths[:, None, None, None])


LONGER = _qkv(s=S)
WEIGHTS = {n: normal(32, 32, seed=i) / 6 for i, n in enumerate(("wq", "wk", "wv"))}
WRITTEN: tuple[tuple[str, Callable[..., Any], dict[str, Any]], ...] = (
    ("einsum", lambda q, k, v: torch.einsum(
        "bhij,bhjd->bhid", _scores(q, k).softmax(-1), v), {}),
    ("heads last", _heads_last, {"inputs": {n: x.transpose(1, 2) for n, x in _qkv().items()}}),
    ("one head", lambda q, k, v: torch.bmm(_scores(q, k).softmax(-1), v),
     {"inputs": {n: x[:, 0] for n, x in _qkv().items()}}),
    ("causal", lambda q, k, v: _attend(q, k, v, _back(q, k) < 0), {"mask": CAUSAL}),
    ("padding", _padded, {"inputs": {**LONGER, "mask": PADDED}, "arguments": {"mask": "attend"}}),
    ("padding, ignored", _ignored,
     {"inputs": {**LONGER, "padding": ~PADDED}, "arguments": {"padding": "ignore"}}),
    ("lengths", _cut, {"inputs": {**LONGER, "lengths": torch.tensor([S, S - 4])},
                       "arguments": {"lengths": "lengths"}}),
    ("window", lambda q, k, v: _attend(q, k, v, (_back(q, k) < 0) | (_back(q, k) > 3)),
     {"mask": WINDOW}),
    ("ALiBi", lambda q, k, v: _attend(
        q, k, v, _back(q, k) < 0, -_slopes(q.shape[1]).to(q) * _back(q, k)), {"mask": CAUSAL}),
    ("rotary", lambda q, k, v: _attend(_rotated(q), _rotated(k), v, _back(q, k) < 0),
     {"mask": CAUSAL}),
    ("projected", _projected, {"inputs": {"x": normal(B, T, 32), **WEIGHTS}, "mask": CAUSAL}),
    ("NumPy inside", _in_numpy, {"inputs": _qkv()}),
    ("intently.attention", it.attention, {}),
    ("intently.attention, causal", functools.partial(it.attention, mask=CAUSAL), {"mask": CAUSAL}),
)  # fmt: skip


def _fused(name: str, mask: it.Mask | None = None, s: int = T, g: int = H, **more: Any) -> Case:
    asked: dict[str, Any] = {"inputs": {**_qkv(("query", "key", "value"), s, g), **more}}
    asked |= {"mask": mask} if mask is not None else {}
    if "attn_mask" in more and mask is None:
        asked["arguments"] = {"attn_mask": "attend"}
    return Case(f"F.scaled_dot_product_attention, {name}", lambda: FUSED, asked)


OTHERS = frozenset((
    "gumbel", "difference", "SigmoidAttention", "DeepViT", "CaiT", "Performer", "LinearAttention",
    "Efficient", "nystrom", "linformer", "over_queries", "T5", "SetTransformer", "NonLocal",
    "talking_before", "talking_both", "talking_heads", "Router", "MemoryNetwork", "sparse",
    "ClipPooling", "OpenAIClip", "exp_in_place", "by_tensordot", "Bert", "Axial",
    "in_autograd_function",
))  # fmt: skip
"""Styles that are another attention by design, pool, or have no gradient for queries and keys."""


def _by_hand(style: str) -> Case:
    model, given = styles.build(style)
    return Case(f"by hand, {style.replace('_', ' ')}", lambda: model, {"inputs": given})


NEGATIVE = torch.zeros(T, T).masked_fill(~lower(T), -torch.inf)
CASES = (
    Case("F.scaled_dot_product_attention, nothing said", lambda: FUSED),
    Case("F.scaled_dot_product_attention, in a partial",
         lambda: functools.partial(FUSED, is_causal=True), {"mask": CAUSAL}),
    _fused("plain"), _fused("cross", s=S), _fused("causal", CAUSAL, is_causal=True),
    _fused("causal, boolean mask", CAUSAL, attn_mask=lower(T)),
    _fused("causal, additive mask", CAUSAL, attn_mask=NEGATIVE),
    _fused("more keys, lower right", CAUSAL, s=S, attn_mask=lower(T, S)),
    _fused("padding", s=S, attn_mask=PADDED[:, None, None, :]),
    _fused("mask of heads", attn_mask=torch.stack([lower(T), lower(T) | lower(T).mT] * 2)),
    _fused("window", WINDOW, attn_mask=lower(T) & ~lower(T).tril(-4)),
    _fused("groups", g=2, enable_gqa=True), _fused("a scale", scale=0.2),
    _fused("groups, causal", CAUSAL, g=2, enable_gqa=True, is_causal=True),
    *(Case(f"a function, {name}", lambda f=f: f, asked) for name, f, asked in WRITTEN),
    *(_by_hand(style) for style in styles.STYLES if style not in OTHERS),
)  # fmt: skip
