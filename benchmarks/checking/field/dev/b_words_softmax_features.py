"""Attention over the words of a sentence: the product with the context vector is not summed, and the softmax runs over its features. Source: github.com/ematvey/hierarchical-attention-networks/issues/2"""
import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import torch
from keras import ops

expect = ["not-normalised"]
words = "softmax over the features of u * tanh(W h) for a softmax over words of u . tanh(W h): a weight for each feature, none that compares words"


class TaskSpecificAttention(keras.layers.Layer):
    def __init__(self, fixed, units=20):
        super().__init__()
        self.fixed = fixed
        self.project = keras.layers.Dense(units, activation="tanh", kernel_initializer=keras.initializers.GlorotNormal(seed=1))
        self.context = self.add_weight(shape=(units,), initializer=keras.initializers.RandomNormal(stddev=1.0, seed=2), name="context")

    def call(self, states):
        u = self.project(states)
        if self.fixed:
            w = ops.softmax(ops.sum(u * self.context, axis=2, keepdims=True), axis=1)
        else:
            w = ops.softmax(u * self.context)
        return ops.sum(u * w, axis=1)


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(states=torch.randn(2, 7, 24)), scale=1.0)


def _make(fixed):
    layer = TaskSpecificAttention(fixed)
    layer(torch.zeros(1, 2, 24))
    return layer


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    """Equal words: the mean of seven equal states is that state."""
    x = torch.randn(2, 1, 24).expand(2, 7, 24)
    w, r = wrong(), right()
    return torch.allclose(r(x), r.project(x)[:, 0], atol=1e-5) and not torch.allclose(w(x), w.project(x)[:, 0], atol=1e-2)
