"""A transpose without axes reverses all three, so the softmax of one side runs over the batch. Source: github.com/HsiaoYetGun/ESIM/issues/5"""
import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np
from keras import layers, ops

expect = ["softmax-over-batch"]
words = "for the second sentence, weights sum to 1 over the batch"


class SoftAlignment(layers.Layer):
    """Each word of a sentence as a mixture of the other sentence's words."""

    def __init__(self, width=24, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(width, activation="relu")

    def over_first(self, e):
        return ops.transpose(ops.softmax(ops.transpose(e), axis=-1))

    def call(self, a, b):
        f_a, f_b = self.dense(a), self.dense(b)
        e = ops.matmul(f_a, ops.transpose(f_b, (0, 2, 1)))
        beta = ops.matmul(ops.softmax(e, axis=-1), b)
        alpha = ops.matmul(ops.transpose(self.over_first(e), (0, 2, 1)), a)
        return beta, alpha


class Mended(SoftAlignment):
    def over_first(self, e):
        return ops.softmax(e, axis=1)


def asks():
    r = np.random.default_rng(1)
    z = lambda n: ops.convert_to_tensor(r.standard_normal((3, n, 16)).astype("float32"))
    return dict(inputs=dict(a=z(6), b=z(8)), scale=1.0)


def _make(kind):
    keras.utils.set_random_seed(0)
    layer = kind()
    layer(**asks()["inputs"])
    return layer


def wrong():
    return _make(SoftAlignment)


def right():
    return _make(Mended)


def proof():
    x = asks()["inputs"]
    a, b = (ops.convert_to_numpy(f()(**x)[1]) for f in (wrong, right))
    return not np.allclose(a, b, atol=1e-3)
