"""Additive attention sums the projected encoder states, which are its keys, in place of the states. Source: github.com/microsoft/CNTK/issues/2083"""
import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np
from keras import layers, ops

expect = ["values-are-keys"]
words = "the context is the weighted sum of the projections that made the scores, not of the encoder states"


class AdditiveAttention(layers.Layer):
    def __init__(self, width=24, **kwargs):
        super().__init__(**kwargs)
        self.encode = layers.Dense(width, use_bias=False)
        self.decode = layers.Dense(width)
        self.v = layers.Dense(1, use_bias=False)

    def summed(self, states, projected):
        return projected

    def call(self, decoder, states):
        """decoder (b, t, c) and encoder states (b, s, c) give contexts (b, t, c)."""
        projected = self.encode(states)
        mixed = ops.tanh(self.decode(decoder)[:, :, None, :] + projected[:, None, :, :])
        weights = ops.softmax(ops.squeeze(self.v(mixed), axis=-1), axis=-1)
        values = self.summed(states, projected)
        return ops.sum(weights[..., None] * values[:, None, :, :], axis=2)


class Mended(AdditiveAttention):
    def summed(self, states, projected):
        return states


def asks():
    r = np.random.default_rng(1)
    z = lambda n: ops.convert_to_tensor(r.standard_normal((2, n, 24)).astype("float32"))
    return dict(inputs=dict(decoder=z(5), states=z(8)))


def _make(kind):
    keras.utils.set_random_seed(0)
    layer = kind()
    layer(**asks()["inputs"])
    return layer


def wrong():
    return _make(AdditiveAttention)


def right():
    return _make(Mended)


def proof():
    x = asks()["inputs"]
    a, b = (ops.convert_to_numpy(f()(**x)) for f in (wrong, right))
    return not np.allclose(a, b, atol=1e-3)
