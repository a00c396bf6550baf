"""The term gating of DRMM is a softmax over query words whose padding mask never takes part. Source: github.com/NTMC-Community/MatchZoo/pull/613"""
import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np
import torch
from keras import ops

import intently as it

expect = ["padding-attended"]
words = "padding words of the query take part in the gating softmax"

IDS = torch.tensor([[3, 9, 4, 12, 5, 7], [8, 2, 11, 0, 0, 0]])


def asks():
    hist = torch.rand(2, 6, 16, generator=torch.Generator().manual_seed(3))
    return dict(inputs=dict(query=IDS, histogram=hist), mask=it.padding([6, 3]), scale=1.0)


class TermGate(keras.layers.Layer):
    """Matching scores of the query's words, weighed by a softmax over the words."""

    def __init__(self, minds_padding):
        super().__init__()
        self.minds_padding = minds_padding
        self.embed = keras.layers.Embedding(20, 24, embeddings_initializer="random_normal")
        self.gate = keras.layers.Dense(1, use_bias=False)
        self.match = keras.layers.Dense(8, activation="tanh")

    def build(self, query_shape, histogram_shape):
        self.embed.build(query_shape)
        self.embed.embeddings.assign(20 * self.embed.embeddings)
        self.gate.build((None, None, 24))
        self.match.build(histogram_shape)

    def gating(self, words, mask=None):
        logits = self.gate(words)
        if mask is not None:
            logits = logits + (1.0 - mask) * -10000.0
        return ops.softmax(logits, axis=1)

    def call(self, query, histogram):
        words = self.embed(query)
        mask = ops.cast(ops.not_equal(query, 0), "float32")[:, :, None] if self.minds_padding else None
        return ops.sum(self.gating(words, mask) * self.match(histogram), axis=1)


def _make(minds):
    keras.utils.set_random_seed(0)
    layer = TermGate(minds)
    layer.build((2, 6), (2, 6, 16))
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
