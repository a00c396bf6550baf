"""Falcon's ALiBi bias is built over the tokens of the query, so in a cached step it is slope * 0 for all keys. Source: github.com/keras-team/keras-hub/pull/2977"""
import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import torch
from keras import ops

expect = ["bias-offset-lost", "cached-step-differs", "bias-missing"]
words = "single-token steps broadcast a (b, h, 1, 1) bias of zeros over the cache: no ALiBi in generation"


class FalconAttention(keras.layers.Layer):
    def __init__(self, fixed, width=32, heads=4):
        super().__init__()
        self.fixed, self.heads, self.d = fixed, heads, width // heads

        def dense(i):
            return keras.layers.Dense(width, kernel_initializer=keras.initializers.GlorotNormal(seed=i))
        self.q, self.k, self.v, self.o = (dense(i) for i in range(4))

    def _alibi(self, n):
        slopes = 2.0 ** (-8.0 * ops.arange(1, self.heads + 1, dtype="float32") / self.heads)
        return slopes[None, :, None, None] * ops.arange(n, dtype="float32")[None, None, None]

    def _cut(self, x):
        return ops.transpose(ops.reshape(x, (x.shape[0], x.shape[1], self.heads, self.d)), (0, 2, 1, 3))

    def call(self, x, cache=None):
        q, k, v = self._cut(self.q(x)), self._cut(self.k(x)), self._cut(self.v(x))
        if cache is not None:
            k, v = ops.concatenate((cache[0], k), 2), ops.concatenate((cache[1], v), 2)
        t, s = q.shape[2], k.shape[2]
        z = ops.matmul(q, ops.swapaxes(k, -1, -2)) / self.d ** 0.5
        z = z + self._alibi(s if self.fixed else t)
        seen = ops.arange(s)[None] <= ops.arange(s - t, s)[:, None]
        w = ops.softmax(ops.where(seen, z, -1e9), axis=-1)
        y = ops.reshape(ops.transpose(ops.matmul(w, v), (0, 2, 1, 3)), x.shape)
        return self.o(y), (k, v)


class Decoding(keras.layers.Layer):
    """A text as generate() runs it: the first token, then one token a step through the cache."""

    def __init__(self, fixed):
        super().__init__()
        self.attention = FalconAttention(fixed)

    def call(self, x):
        cache, out = None, []
        for i in range(x.shape[1]):
            y, cache = self.attention(x[:, i:i + 1], cache)
            out.append(y)
        return ops.concatenate(out, 1)


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 6, 32)), mask=it.causal(), like=right())


def _make(fixed):
    layer = Decoding(fixed)
    layer(torch.zeros(1, 2, 32))
    return layer


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    r = right()
    whole, _ = r.attention(a["x"])
    return torch.allclose(r(**a), whole, atol=1e-4) and not torch.allclose(wrong()(**a), whole, atol=1e-3)
