"""Query, key and value projections of a multi-head attention read one and the same matrix, because the variable is reused. Source: github.com/stevezheng23/sequence_labeling_tf/pull/81"""
import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np
import torch
from keras import ops

expect = ["keys-are-queries", "values-are-keys", "values-are-queries"]
words = "one projection matrix serves as W_q, W_k and W_v"


def asks():
    return dict(inputs=dict(x=torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(2))))


class MultiHead(keras.layers.Layer):
    def __init__(self, units=32, heads=4, shared=False):
        super().__init__()
        self.units, self.heads, self.shared = units, heads, shared

    def build(self, shape):
        names = ["projection"] if self.shared else ["query", "key", "value"]
        made = [self.add_weight(shape=(shape[-1], self.units), initializer="glorot_uniform", name=n) for n in names]
        self.w = made * 3 if self.shared else made

    def call(self, x):
        b, t, _ = x.shape
        d = self.units // self.heads
        q, k, v = (ops.transpose(ops.reshape(ops.matmul(x, w), (b, t, self.heads, d)), (0, 2, 1, 3)) for w in self.w)
        score = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / float(np.sqrt(d))
        y = ops.matmul(ops.softmax(score, axis=-1), v)
        return ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (b, t, self.units))


def _make(shared):
    keras.utils.set_random_seed(0)
    layer = MultiHead(shared=shared)
    layer.build((2, 7, 32))
    return layer


def wrong():
    return _make(True)


def right():
    return _make(False)


def proof():
    x = asks()["inputs"]["x"]
    w = wrong()
    a, b = ops.convert_to_numpy(w(x)), ops.convert_to_numpy(right()(x))
    return np.abs(a - b).max() > 1e-2 and w.w[0] is w.w[1] is w.w[2]


if __name__ == "__main__":
    print(proof())
