"""In a reading comprehension model, query, key and value projections ask for a variable of one name in a scope that reuses variables, and share one matrix. Source: github.com/stevezheng23/reading_comprehension_tf/pull/284"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import numpy as np
import keras
from keras import ops

expect = ["keys-are-queries", "values-are-keys", "values-are-queries"]
words = "one weight serves as W_q, W_k and W_v"


class MultiHeadReader(keras.layers.Layer):
    names = dict(query="projection_weight", key="projection_weight", value="projection_weight")

    def __init__(self, units=32, heads=4, **kw):
        super().__init__(**kw)
        self.units, self.heads = units, heads
        self.store = {}

    def variable(self, name, width):
        if name not in self.store:
            self.store[name] = self.add_weight(shape=(width, self.units), initializer="glorot_uniform", name=name)
        return self.store[name]

    def build(self, shape):
        self.q = self.variable(self.names["query"], shape[-1])
        self.k = self.variable(self.names["key"], shape[-1])
        self.v = self.variable(self.names["value"], shape[-1])
        self.built = True

    def split(self, x):
        b, t, c = x.shape
        return ops.transpose(ops.reshape(x, (b, t, self.heads, c // self.heads)), (0, 2, 1, 3))

    def call(self, text):
        q, k, v = (self.split(ops.matmul(text, w)) for w in (self.q, self.k, self.v))
        score = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / (self.units // self.heads) ** 0.5
        y = ops.matmul(ops.softmax(score, axis=-1), v)
        return ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (text.shape[0], text.shape[1], self.units))


class MultiHeadReaderMended(MultiHeadReader):
    names = dict(query="query_projection", key="key_projection", value="value_projection")


def build(kind):
    keras.utils.set_random_seed(0)
    layer = kind(32, 4)
    layer.build((2, 7, 32))
    return layer


def asks():
    return dict(inputs=dict(text=np.random.default_rng(0).standard_normal((2, 7, 32)).astype("float32")))


def wrong():
    return build(MultiHeadReader)


def right():
    return build(MultiHeadReaderMended)


def proof():
    return len(wrong().weights) == 1 and len(right().weights) == 3


if __name__ == "__main__":
    print(proof())
