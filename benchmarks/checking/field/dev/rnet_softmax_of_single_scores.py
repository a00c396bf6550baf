"""A pointer network takes the softmax over an axis of length one, so every weight is 1. Source: github.com/localminimum/R-net/issues/8"""
import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np
from keras import layers, ops

expect = ["not-normalised"]
words = "every word of the passage has weight 1: the pooled passage is a sum"


class Pointer(layers.Layer):
    """Scores of each passage word for the start of an answer, and the state for its end."""

    def __init__(self, width=24, **kwargs):
        super().__init__(**kwargs)
        self.words, self.state = layers.Dense(width, use_bias=False), layers.Dense(width, use_bias=False)
        self.v = layers.Dense(1, use_bias=False)
        self.cell = layers.Dense(width, activation="tanh")

    def weigh(self, logits):
        return ops.softmax(ops.expand_dims(logits, -1), axis=-1)

    def call(self, passage, question):
        """passage (b, s, c), question state (b, c)."""
        mixed = ops.tanh(self.words(passage) + self.state(question)[:, None, :])
        logits = ops.squeeze(self.v(mixed), axis=-1)
        pooled = ops.sum(self.weigh(logits) * passage, axis=1)
        return logits, self.cell(ops.concatenate([pooled, question], axis=-1))


class Mended(Pointer):
    def weigh(self, logits):
        return ops.expand_dims(ops.softmax(logits, axis=-1), -1)


def asks():
    r = np.random.default_rng(1)
    z = lambda *n: ops.convert_to_tensor(r.standard_normal((2, *n, 24)).astype("float32"))
    return dict(inputs=dict(passage=z(8), question=z()))


def _make(kind):
    keras.utils.set_random_seed(0)
    layer = kind()
    layer(**asks()["inputs"])
    return layer


def wrong():
    return _make(Pointer)


def right():
    return _make(Mended)


def proof():
    x = asks()["inputs"]
    a, b = (ops.convert_to_numpy(f()(**x)[1]) for f in (wrong, right))
    return not np.allclose(a, b, atol=1e-3)
