"""The padding mask of the Performer's JAX layer was not carried over to its TensorFlow layer, so padded keys enter both sums. Source: github.com/google-research/google-research/issues/1461"""
import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np
import torch
from keras import ops

import intently as it

expect = ["padding-attended"]
words = "linear attention sums feature maps of padded keys too"

REAL = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])


def asks():
    return dict(inputs=dict(x=torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(4)), mask=REAL), mask=it.padding(REAL))


class FavorAttention(keras.layers.Layer):
    def __init__(self, width=32, heads=2, hides=False):
        super().__init__()
        self.width, self.heads, self.hides = width, heads, hides
        self.q, self.k, self.v, self.o = (keras.layers.Dense(width, use_bias=False) for _ in range(4))

    def build(self, *shapes):
        for d in (self.q, self.k, self.v, self.o):
            d.build((None, None, self.width))

    def split(self, u):
        b, t, _ = u.shape
        return ops.reshape(u, (b, t, self.heads, self.width // self.heads))

    def features(self, u):
        return ops.relu(u) + 1e-3

    def call(self, x, mask=None):
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        q, k = self.features(q), self.features(k)
        if self.hides and mask is not None:
            k = k * ops.cast(mask, "float32")[:, :, None, None]
        kv = ops.einsum("blhm,blhd->bhmd", k, v)
        top = ops.einsum("blhm,bhmd->blhd", q, kv)
        below = ops.einsum("blhm,bhm->blh", q, ops.sum(k, axis=1))
        y = top / below[..., None]
        return self.o(ops.reshape(y, x.shape))


def _make(hides):
    keras.utils.set_random_seed(0)
    layer = FavorAttention(hides=hides)
    layer.build()
    layer.built = True
    return layer


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    x, y = (ops.convert_to_numpy(f()(**a)) for f in (wrong, right))
    return np.allclose(x[0], y[0], atol=1e-5) and np.abs(x[1] - y[1]).max() > 1e-2


if __name__ == "__main__":
    print(proof())
