"""The scale is folded into the exponent, so it multiplies the additive mask as well as q k. Source: github.com/tenstorrent/tt-metal/pull/42891"""
import numpy as np

expect = ["bias-scaled"]
words = "a position bias passed as mask is shrunk by sqrt(d)"


def sdpa_folded(query, key, value, attn_mask=None):
    """softmax over blocks of keys with running maximum and sum, the scale within the exponent."""
    scale = query.shape[-1] ** -0.5
    top = np.full((*query.shape[:-1], 1), -np.inf, dtype=query.dtype)
    total, out = np.zeros_like(top), np.zeros((*query.shape[:-1], value.shape[-1]), dtype=query.dtype)
    for first in range(0, key.shape[-2], 4):
        part = slice(first, first + 4)
        qk = query @ key[..., part, :].swapaxes(-1, -2)
        if attn_mask is not None:
            qk = qk + attn_mask[..., part]
        new = np.maximum(top, qk.max(-1, keepdims=True))
        p, old = np.exp((qk - new) * scale), np.exp((top - new) * scale)
        total, out, top = total * old + p.sum(-1, keepdims=True), out * old + p @ value[..., part, :], new
    return out / total


def sdpa_compensated(query, key, value, attn_mask=None):
    if attn_mask is not None:
        attn_mask = attn_mask / query.shape[-1] ** -0.5
    return sdpa_folded(query, key, value, attn_mask)


def asks():
    r = np.random.default_rng(1)
    z = lambda n: r.standard_normal((2, 4, n, 8)).astype(np.float32)
    bias = r.standard_normal((1, 4, 6, 9)).astype(np.float32)
    return dict(inputs=dict(query=z(6), key=z(9), value=z(9), attn_mask=bias))


def wrong():
    return sdpa_folded


def right():
    return sdpa_compensated


def proof():
    x = asks()["inputs"]
    plain = x["query"] @ x["key"].swapaxes(-1, -2) / np.sqrt(8) + x["attn_mask"]
    w = np.exp(plain - plain.max(-1, keepdims=True))
    want = (w / w.sum(-1, keepdims=True)) @ x["value"]
    return np.allclose(right()(**x), want, atol=1e-4) and not np.allclose(wrong()(**x), want, atol=1e-3)
