"""The attentional factorisation machine keeps an axis of size 1 and takes its softmax over it, so every pair of features has the weight 1. Source: github.com/hexiangnan/attentional_factorization_machine/issues/19"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import numpy as np
import keras
from keras import ops

expect = ["not-normalised"]
words = "all weights are 1: the softmax runs over the kept axis of size 1 where it should run over pairs"


def asks():
    return dict(inputs=dict(fields=np.random.default_rng(3).normal(size=(2, 5, 16)).astype("float32")))


class PairPooling(keras.layers.Layer):
    over = -1

    def build(self, shape):
        width = shape[-1]
        self.hidden = self.add_weight(shape=(width, 16), initializer="glorot_uniform", name="hidden")
        self.offset = self.add_weight(shape=(16,), initializer="zeros", name="offset")
        self.direction = self.add_weight(shape=(16, 1), initializer="glorot_uniform", name="direction")

    def call(self, fields):
        m = fields.shape[1]
        left = [i for i in range(m) for _ in range(i + 1, m)]
        right_ = [j for i in range(m) for j in range(i + 1, m)]
        pairs = ops.take(fields, left, axis=1) * ops.take(fields, right_, axis=1)      # (b, m(m-1)/2, k)
        score = ops.matmul(ops.relu(ops.matmul(pairs, self.hidden) + self.offset), self.direction)
        share = ops.softmax(score, axis=self.over)                                        # (b, pairs, 1)
        return ops.sum(share * pairs, axis=1)


class PairPoolingMended(PairPooling):
    over = 1


def _made(kind):
    keras.utils.set_random_seed(0)
    layer = kind()
    layer.build((2, 5, 16))
    return layer


def wrong():
    return _made(PairPooling)


def right():
    return _made(PairPoolingMended)


def proof():
    x = asks()["inputs"]["fields"]
    a, b = (ops.convert_to_numpy(f()(x)) for f in (wrong, right))
    return bool(np.abs(a - b).max() > 1e-2)
