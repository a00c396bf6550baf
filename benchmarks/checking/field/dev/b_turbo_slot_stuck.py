"""A compressed cache never advances its write offset while decoding, so each token overwrites the one before. Source: github.com/ekryski/mlx-swift-lm/pull/90"""
import numpy as np

expect = ["cache-overwritten", "cached-step-differs"]
words = "after the prompt every new key is written to the same slot; the slots behind it stay zero and are read"


class SlotCache:
    def __init__(self, fixed, size, heads, d, rows):
        self.fixed = fixed
        self.k = np.zeros((rows, heads, size, d), "float32")
        self.v = np.zeros_like(self.k)
        self.offset = self.written = 0

    def prefill(self, k, v):
        n = k.shape[2]
        self.k[:, :, :n], self.v[:, :, :n] = k, v
        self.offset = self.written = n
        return self.k[:, :, :n], self.v[:, :, :n]

    def step(self, k, v):
        self.offset += 1
        self.k[:, :, self.written], self.v[:, :, self.written] = k[:, :, 0], v[:, :, 0]
        if self.fixed:
            self.written += 1
        return self.k[:, :, :self.offset], self.v[:, :, :self.offset]


class Attention:
    def __init__(self, width=32, heads=4):
        r = np.random.default_rng(0)
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (r.standard_normal((width, width)).astype("float32") * width ** -0.5 for _ in range(4))

    def _cut(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, -1).transpose(0, 2, 1, 3)

    def __call__(self, x, put):
        q = self._cut(x @ self.wq)
        k, v = put(self._cut(x @ self.wk), self._cut(x @ self.wv))
        t, s = q.shape[2], k.shape[2]
        z = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        z = np.where(np.arange(s) <= np.arange(s - t, s)[:, None], z, -np.inf)
        w = np.exp(z - z.max(-1, keepdims=True))
        y = (w / w.sum(-1, keepdims=True)) @ v
        return y.transpose(0, 2, 1, 3).reshape(x.shape) @ self.wo


def _decode(fixed, prompt=3):
    layer = Attention()

    def decode(x):
        cache = SlotCache(fixed, x.shape[1], 4, 8, len(x))
        out = [layer(x[:, :prompt], cache.prefill)]
        out += [layer(x[:, i:i + 1], cache.step) for i in range(prompt, x.shape[1])]
        return np.concatenate(out, 1)
    return decode


def asks():
    import intently as it
    return dict(inputs=dict(x=np.random.default_rng(1).standard_normal((2, 8, 32)).astype("float32")), mask=it.causal())


def wrong():
    return _decode(False)


def right():
    return _decode(True)


def proof():
    x = asks()["inputs"]["x"]
    whole = Attention()(x, lambda k, v: (k, v))
    return np.allclose(right()(x), whole, atol=1e-5) and not np.allclose(wrong()(x), whole, atol=1e-2)
