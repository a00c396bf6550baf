"""A sentiment encoder expands the mask of real words to (batch, 1, length, 1) and adds it to the scores: each row is moved by a constant, which the softmax ignores. Source: github.com/brightmart/sentiment_analysis_fine_grain/issues/10"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
from keras import layers, ops
import numpy as np
import torch

expect = ["padding-attended", "mask-on-queries", "mask-boolean-added", "mask-missing"]
words = "a 0/1 mask lies on the queries and is added as a number, so it has no effect and padding is attended to"


class MaskedHeads(layers.Layer):
    def __init__(self, d_model=24, h=3, **kwargs):
        super().__init__(**kwargs)
        self.h, self.d = h, d_model // h
        self.q, self.k, self.v, self.o = (layers.Dense(d_model) for _ in range(4))

    def apply_mask(self, dot_product, mask):
        mask = ops.cast(mask, "float32")
        return dot_product + (1.0 - mask[:, None, None, :]) * -1e9

    def split(self, x):
        n = ops.shape(x)[1]
        return ops.transpose(ops.reshape(x, (-1, n, self.h, self.d)), (0, 2, 1, 3))

    def call(self, x, mask):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        dot_product = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * self.d ** -0.5
        weights = ops.softmax(self.apply_mask(dot_product, mask), axis=-1)
        y = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        return self.o(ops.reshape(y, (-1, ops.shape(x)[1], self.h * self.d)))


class Reported(MaskedHeads):
    def apply_mask(self, dot_product, mask):
        mask = ops.expand_dims(ops.cast(mask, "float32"), axis=-1)
        mask = ops.expand_dims(mask, axis=1)
        return dot_product + mask


def asks():
    import intently as it
    real = torch.arange(7)[None] < torch.tensor([[7], [4]])
    return dict(inputs=dict(x=torch.randn(2, 7, 24), mask=real), mask=it.padding([7, 4]))


def _make(cls):
    keras.utils.set_random_seed(0)
    layer = cls()
    layer(np.zeros((1, 2, 24), "float32"), np.ones((1, 2), bool))
    return layer


def wrong():
    return _make(Reported)


def right():
    return _make(MaskedHeads)


def proof():
    x = asks()["inputs"]
    bad, good = wrong(), right()
    all_real = dict(x, mask=torch.ones(2, 7, dtype=torch.bool))
    return torch.allclose(bad(**x), bad(**all_real), atol=1e-5) and not torch.allclose(good(**x), good(**all_real), atol=1e-4)
