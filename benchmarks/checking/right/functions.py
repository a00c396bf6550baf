"""Functions of q, k and v, PyTorch's own and as people write them, and the styles of breadth."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import intently as it
from benchmarks.breadth import styles
from benchmarks.checking.right import Case, lower, normal, real

B, H, T, S, D = 2, 4, 6, 9, 8
FUSED = F.scaled_dot_product_attention
CAUSAL = it.causal()


def _qkv(s: int = T, g: int = H) -> dict[str, Tensor]:
    q, k, v = normal(B, H, T, D), normal(B, g, s, D, seed=1), normal(B, g, s, D, seed=2)
    return {"query": q, "key": k, "value": v}


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads apart, all in einsum."""
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


def heads_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(b, t, h, d), as flash-attention lays it out."""
    scores = torch.einsum("bihd,bjhd->bhij", q * q.shape[-1] ** -0.5, k)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)


def one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(b, t, d) with one head."""
    return torch.bmm((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1), v)


def causal_by_fill(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A causal mask by masked_fill."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, torch.finfo(scores.dtype).min).softmax(-1) @ v


def by_steps(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A softmax written out, with the maximum taken away."""
    z = q @ k.mT / q.shape[-1] ** 0.5
    e = (z - z.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)) @ v


def streamed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Key by key, with a running maximum and sum."""
    z = q @ k.mT / q.shape[-1] ** 0.5
    most, total, out = torch.full_like(z[..., :1], -1e30), 0.0, 0.0
    for j in range(k.shape[-2]):
        larger = torch.maximum(most, z[..., j : j + 1])
        old, new = (most - larger).exp(), (z[..., j : j + 1] - larger).exp()
        total, out = total * old + new, out * old + new * v[..., j : j + 1, :]
        most = larger
    return out / total


def with_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """A padding mask (b, s), True for real keys."""
    z = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask[:, None, None, :], -torch.inf)
    return z.softmax(-1) @ v


def with_ignored(q: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> Tensor:
    """A padding mask (b, s), True for padding."""
    z = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(padding[:, None, None, :], -1e9)
    return z.softmax(-1) @ v


def with_lengths(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    """Lengths (b,) of keys."""
    hidden = torch.arange(k.shape[-2]) >= lengths[:, None, None, None]
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v


def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The last three keys and the query's own."""
    i = torch.arange(q.shape[-2])[:, None]
    j = torch.arange(k.shape[-2])
    z = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill((j > i) | (i - j > 3), -torch.inf)
    return z.softmax(-1) @ v


def sloped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal, with ALiBi."""
    slopes = 2.0 ** -(8.0 / q.shape[1] * torch.arange(1, q.shape[1] + 1, dtype=q.dtype))
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    z = q @ k.mT / q.shape[-1] ** 0.5 + slopes[:, None, None] * (j - i)
    return z.masked_fill(j > i, -torch.inf).softmax(-1) @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softcap 30."""
    return (30.0 * torch.tanh(q @ k.mT / q.shape[-1] ** 0.5 / 30.0)).softmax(-1) @ v


def with_sink(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One more score, 0, which takes weight and gives nothing."""
    z = q @ k.mT / q.shape[-1] ** 0.5
    return torch.cat([z, torch.zeros_like(z[..., :1])], -1).softmax(-1)[..., :-1] @ v


def turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Rotary in halves, causal."""
    q, k = _rotated(q), _rotated(k)
    later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf).softmax(-1) @ v


def _rotated(x: Tensor) -> Tensor:
    d = x.shape[-1]
    rates = 10_000.0 ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
    angle = (torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * rates).repeat(1, 2)
    a, b = x.chunk(2, -1)
    return x * angle.cos() + torch.cat([-b, a], -1) * angle.sin()


def projected(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor) -> Tensor:
    """Self-attention by weights that are passed."""
    q, k, v = ((x @ w).unflatten(-1, (H, -1)).transpose(1, 2) for w in (wq, wk, wv))
    return FUSED(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def pair(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The output beside the weights."""
    w = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    return w @ v, w


def _fused(name: str, mask: it.Mask | None = None, s: int = T, g: int = H, **more: Any) -> Case:
    inputs = {**_qkv(s, g), **more}
    asked: dict[str, Any] = {"inputs": inputs}
    if mask is not None:
        asked["mask"] = mask
    if isinstance(more.get("attn_mask"), Tensor) and mask is None:
        held = more["attn_mask"].dtype == torch.bool
        asked["arguments"] = {"attn_mask": "attend" if held else "add"}
    return Case(f"F.scaled_dot_product_attention, {name}", lambda: FUSED, asked)


def _written(f: Any, name: str = "", **asked: Any) -> Case:
    return Case(f"a function, {name or f.__name__.replace('_', ' ')}", lambda: f, asked)


OTHERS = frozenset((
    "gumbel", "difference", "SigmoidAttention", "DeepViT", "CaiT", "Performer", "LinearAttention",
    "Efficient", "nystrom", "linformer", "over_queries", "T5", "SetTransformer", "NonLocal",
    "talking_before", "talking_both", "talking_heads", "Router", "MemoryNetwork", "sparse",
    "ClipPooling", "OpenAIClip", "exp_in_place", "by_tensordot", "Bert", "Axial",
    "in_autograd_function",
))  # fmt: skip
"""Styles that are another attention by design, pool, or have no gradient for queries and keys."""


def _case(style: str) -> Case:
    model, given = styles.build(style)
    asked: dict[str, Any] = {"inputs": given}
    return Case(f"by hand, {style.replace('_', ' ')}", lambda: model, asked)


BY_HAND = tuple(_case(style) for style in styles.STYLES if style not in OTHERS)


NEGATIVE = torch.zeros(T, T).masked_fill(~lower(T), -torch.inf)
PADDED = real(B, S)
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
    _fused("window", it.causal() & it.window(2, 0), attn_mask=lower(T) & ~lower(T).tril(-3)),
    _fused("groups", g=2, enable_gqa=True),
    _fused("groups, causal", CAUSAL, g=2, enable_gqa=True, is_causal=True),
    _fused("a scale", scale=0.2),
    _written(by_einsum), _written(heads_last, inputs={
        n: normal(B, T, H, D, seed=i) for i, n in enumerate("qkv")}),
    _written(one_head, inputs={n: normal(B, T, D, seed=i) for i, n in enumerate("qkv")}),
    _written(by_einsum, "einsum, found out"), _written(one_head, "one head, found out"),
    _written(causal_by_fill, mask=CAUSAL), _written(causal_by_fill, "causal, inferred"),
    _written(by_steps), _written(streamed),
    _written(with_mask, inputs={"q": normal(B, H, T, D), "k": normal(B, H, S, D, seed=1),
             "v": normal(B, H, S, D, seed=2), "mask": PADDED}, arguments={"mask": "attend"}),
    _written(with_ignored, inputs={"q": normal(B, H, T, D), "k": normal(B, H, S, D, seed=1),
             "v": normal(B, H, S, D, seed=2), "padding": ~PADDED},
             arguments={"padding": "ignore"}),
    _written(with_lengths, inputs={"q": normal(B, H, T, D), "k": normal(B, H, S, D, seed=1),
             "v": normal(B, H, S, D, seed=2), "lengths": torch.tensor([S, S - 4])},
             arguments={"lengths": "lengths"}),
    _written(window, mask=it.causal() & it.window(3, 0)), _written(window, "window, inferred"),
    _written(sloped, mask=CAUSAL), _written(sloped, "ALiBi, stated", mask=CAUSAL, bias=it.alibi()),
    _written(capped), _written(with_sink), _written(turned, mask=CAUSAL), _written(pair),
    _written(projected, mask=CAUSAL, inputs={
        "x": normal(B, T, 32), **{n: normal(32, 32, seed=i) / 6 for i, n in enumerate(
            ("wq", "wk", "wv"))}}),
    _written(it.attention, "intently.attention"),
    _written(functools.partial(it.attention, mask=it.causal()), "intently.attention, causal",
             mask=CAUSAL),
    _written(it.scaled_dot_product_attention, "intently's drop-in"),
    Case("a function, NumPy inside", lambda: _in_numpy, {
        "inputs": {n: normal(B, H, T, D, seed=i) for i, n in enumerate("qkv")}}),
    Case("a function, in float32 inside", lambda: _in_float32),
    *BY_HAND,
)  # fmt: skip


def _in_numpy(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    import numpy as np

    a, b, c = (x.detach().numpy() for x in (q, k, v))
    z = a @ np.swapaxes(b, -1, -2) / a.shape[-1] ** 0.5
    e = np.exp(z - z.max(-1, keepdims=True))
    return torch.from_numpy(e / e.sum(-1, keepdims=True) @ c)


def _in_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    z = q.float() @ k.float().mT / q.shape[-1] ** 0.5
    return (z.softmax(-1) @ v.float()).to(q.dtype)
