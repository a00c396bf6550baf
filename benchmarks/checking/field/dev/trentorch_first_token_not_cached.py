"""The first token of a prompt advances the cache without being written, so position 0 stays zero. Source: github.com/TrenTorch/TrenTorch/pull/192"""
import numpy as np
import intently as it

expect = ["cached-step-differs", "cache-overwritten"]
words = "key and value of position 0 are zeros in the cache"


class Slots:
    def __init__(self, rows, heads, longest, size):
        self.k = np.zeros((rows, heads, longest, size), np.float32)
        self.v = np.zeros_like(self.k)
        self.used = 0

    def put(self, k, v):
        self.k[:, :, self.used], self.v[:, :, self.used] = k, v


class Attention:
    def __init__(self, width, heads, slip):
        rng = np.random.default_rng(21)
        self.heads, self.slip = heads, slip
        self.wq, self.wk, self.wv, self.wo = (rng.standard_normal((4, width, width)) / width ** 0.5).astype(np.float32)

    def heads_of(self, x):
        return x.reshape(*x.shape[:-1], self.heads, -1).swapaxes(1, 2)

    def mix(self, q, k, v, hidden=None):
        z = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        if hidden is not None:
            z = np.where(hidden, -np.inf, z)
        z = np.exp(z - z.max(-1, keepdims=True))
        y = (z / z.sum(-1, keepdims=True)) @ v
        return y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1) @ self.wo

    def __call__(self, x, cache=None):
        q, k, v = (self.heads_of(x @ w) for w in (self.wq, self.wk, self.wv))
        t = x.shape[1]
        if cache is None:
            return self.mix(q, k, v, np.triu(np.ones((t, t), bool), 1))
        rows = []
        for i in range(t):
            if cache.used == 0:
                rows.append(self.mix(q[:, :, i:i + 1], k[:, :, i:i + 1], v[:, :, i:i + 1]))
                if not self.slip:
                    cache.put(k[:, :, i], v[:, :, i])
            else:
                cache.put(k[:, :, i], v[:, :, i])
                n = cache.used + 1
                rows.append(self.mix(q[:, :, i:i + 1], cache.k[:, :, :n], cache.v[:, :, :n]))
            cache.used += 1
        return np.concatenate(rows, 1)


def make(slip):
    layer = Attention(32, 4, slip)

    def decode(x):
        return layer(x, cache=Slots(x.shape[0], 4, x.shape[1], 8))
    return decode


def asks():
    x = np.random.default_rng(0).standard_normal((2, 6, 32)).astype(np.float32)
    return dict(inputs=dict(x=x), mask=it.causal(), like=Attention(32, 4, False))


def wrong(): return make(True)
def right(): return make(False)


def proof():
    x = asks()["inputs"]["x"]
    whole = Attention(32, 4, False)(x)
    return np.allclose(right()(x), whole, atol=1e-5) and not np.allclose(wrong()(x), whole, atol=1e-2)
