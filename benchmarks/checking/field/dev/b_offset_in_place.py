"""A batched cache advances its offset in place, so the offset that the layer read for its queries moves between the rotation of keys and that of queries. Source: github.com/ml-explore/mlx-lm/issues/1699"""
import numpy as np

expect = ["rotation-off-by-one", "cached-step-differs", "rotation-other"]
words = "queries are rotated by the offset after the update, keys by the offset before it: one step apart in a decoding step"


def _rotate(x, offset, base=10000.0):
    """x (b, h, t, d), offset (b,)"""
    half = x.shape[-1] // 2
    pos = offset[:, None] + np.arange(x.shape[2])
    angle = pos[:, None, :, None] * base ** (-np.arange(half) / half)
    c, s = np.cos(angle), np.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate((a * c - b * s, a * s + b * c), -1).astype(x.dtype)


class BatchCache:
    def __init__(self, rows):
        self.offset = np.zeros(rows, dtype=np.int64)
        self.keys = self.values = None

    def update_and_fetch(self, k, v):
        self.offset += k.shape[2]
        self.keys = k if self.keys is None else np.concatenate((self.keys, k), 2)
        self.values = v if self.values is None else np.concatenate((self.values, v), 2)
        return self.keys, self.values


class Attention:
    def __init__(self, fixed, width=32, heads=4):
        r = np.random.default_rng(0)
        self.fixed, self.heads = fixed, heads
        self.wq, self.wk, self.wv, self.wo = (r.standard_normal((width, width)).astype("float32") * width ** -0.5 for _ in range(4))

    def _cut(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, -1).transpose(0, 2, 1, 3)

    def __call__(self, x, cache):
        q, k, v = (self._cut(x @ w) for w in (self.wq, self.wk, self.wv))
        offset = cache.offset.copy() if self.fixed else cache.offset
        k, v = cache.update_and_fetch(_rotate(k, offset), v)
        q = _rotate(q, offset)
        t, s = q.shape[2], k.shape[2]
        z = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        z = np.where(np.arange(s) <= np.arange(s - t, s)[:, None], z, -np.inf)
        w = np.exp(z - z.max(-1, keepdims=True))
        y = (w / w.sum(-1, keepdims=True)) @ v
        return y.transpose(0, 2, 1, 3).reshape(x.shape) @ self.wo


def _generate(fixed):
    layer = Attention(fixed)

    def generate(x):
        """The text token by token through a cache, as a server does."""
        cache = BatchCache(len(x))
        return np.concatenate([layer(x[:, i:i + 1], cache) for i in range(x.shape[1])], 1)
    return generate


def asks():
    import intently as it
    return dict(inputs=dict(x=np.random.default_rng(1).standard_normal((2, 6, 32)).astype("float32")),
                mask=it.causal(), like=right())


def wrong():
    return _generate(False)


def right():
    return _generate(True)


def proof():
    x = asks()["inputs"]["x"]
    whole = Attention(True)(x, BatchCache(2))
    return np.allclose(right()(x), whole, atol=1e-5) and not np.allclose(wrong()(x), whole, atol=1e-2)
