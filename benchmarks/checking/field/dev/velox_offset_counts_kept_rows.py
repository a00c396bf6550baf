"""A cache that evicts keys tells the rotation how many rows it kept, not how many tokens it has seen. Source: github.com/rajveer43/VeloxQuant-MLX/issues/389"""
import numpy as np
import intently as it

expect = ["position-offset-lost", "rotation-offset-lost", "rotation-other", "rotation-missing", "cached-step-differs"]
words = "after an eviction every token is rotated at the same position"


class Cache:
    def __init__(self):
        self.keys = self.values = None
        self.offset = 0

    def update_and_fetch(self, k, v):
        self.keys = k if self.keys is None else np.concatenate([self.keys, k], axis=2)
        self.values = v if self.values is None else np.concatenate([self.values, v], axis=2)
        self.offset += k.shape[2]
        return self.keys, self.values


class EvictingCache(Cache):
    """Keeps the newest `budget` rows."""

    def __init__(self, budget, counts_tokens):
        super().__init__()
        self.budget, self.counts_tokens, self.seen = budget, counts_tokens, 0

    def update_and_fetch(self, k, v):
        self.seen += k.shape[2]
        if self.keys is not None:
            k = np.concatenate([self.keys, k], axis=2)
            v = np.concatenate([self.values, v], axis=2)
        k, v = k[:, :, -self.budget :], v[:, :, -self.budget :]
        self.keys, self.values, self.offset = None, None, 0
        out = super().update_and_fetch(k, v)
        if self.counts_tokens:
            self.offset = self.seen
        return out


def _rotate(x, offset):
    half = x.shape[-1] // 2
    angle = (np.arange(x.shape[2]) + offset)[:, None] * 10000.0 ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1)


class Attention:
    def __init__(self, width=32, heads=2):
        r = np.random.default_rng(10)
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (r.normal(size=(width, width)) * width**-0.5 for _ in range(4))

    def __call__(self, x, cache):
        b, t, c = x.shape
        q, k, v = ((x @ w).reshape(b, t, self.heads, -1).transpose(0, 2, 1, 3) for w in (self.wq, self.wk, self.wv))
        q, k = _rotate(q, cache.offset), _rotate(k, cache.offset)
        k, v = cache.update_and_fetch(k, v)
        z = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        p = np.exp(z - z.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        return (p @ v).transpose(0, 2, 1, 3).reshape(b, t, c) @ self.wo


def _build(counts_tokens):
    layer = Attention()

    def decode(x):
        cache = EvictingCache(4, counts_tokens)
        return np.concatenate([layer(x[:, i : i + 1], cache) for i in range(x.shape[1])], axis=1)

    return decode


def _inputs():
    return dict(x=np.random.default_rng(11).normal(size=(2, 9, 32)))


def asks():
    return dict(inputs=_inputs(), mask=it.window(3, 0))


def wrong():
    return _build(False)


def right():
    return _build(True)


def proof():
    d = np.abs(wrong()(**_inputs()) - right()(**_inputs())).max(axis=(0, 2))
    return bool(d[:5].max() < 1e-9 and d[5:].min() > 1e-3)
