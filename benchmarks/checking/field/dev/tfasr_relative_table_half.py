"""Relative positions of a conformer: the table has L rows in place of 2L - 1, so the shift fills distances ahead with zeros and rows of the next query. Source: github.com/TensorSpeech/TensorFlowASR/issues/161"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np
from keras import ops

expect = ["bias-other", "scores-other", "differs-from-reference"]
words = "position scores of keys after the query are a zero and those of the next query's row"


class RelativeHeads(keras.layers.Layer):
    def __init__(self, width, heads, slip, **kw):
        super().__init__(**kw)
        self.width, self.heads, self.slip = width, heads, slip
        self.size = width // heads
        self.query, self.key, self.value, self.pos, self.out = (keras.layers.Dense(width, use_bias=i != 3) for i in range(5))

    def build(self, shape):
        for layer in (self.query, self.key, self.value, self.pos, self.out):
            layer.build(shape)
        self.content = self.add_weight(shape=(self.heads, self.size), initializer="glorot_uniform", name="content")
        self.place = self.add_weight(shape=(self.heads, self.size), initializer="glorot_uniform", name="place")

    def table(self, t):
        first = 0 if self.slip else 1 - t
        distance = np.arange(t - 1, first - 1, -1)[:, None]
        angle = distance / 10000 ** (np.arange(0, self.width, 2) / self.width)
        return ops.convert_to_tensor(np.concatenate([np.sin(angle), np.cos(angle)], -1)[None].astype("float32"))

    def split(self, x):
        return ops.reshape(x, (ops.shape(x)[0], -1, self.heads, self.size))

    def shift(self, x):
        b, h, t, r = x.shape
        x = ops.pad(x, [[0, 0], [0, 0], [0, 0], [1, 0]])
        x = ops.reshape(x, (b, h, r + 1, t))[:, :, 1:]
        return ops.reshape(x, (b, h, t, r))[..., :t]

    def call(self, x):
        t = x.shape[1]
        q, k, v, r = (self.split(u) for u in (self.query(x), self.key(x), self.value(x), self.pos(self.table(t))))
        by_content = ops.einsum("bthd,bshd->bhts", q + self.content, k)
        by_place = self.shift(ops.einsum("bthd,rhd->bhtr", q + self.place, r[0]))
        weights = ops.softmax((by_content + by_place) / self.size ** 0.5, axis=-1)
        return self.out(ops.reshape(ops.einsum("bhts,bshd->bthd", weights, v), (-1, t, self.width)))


def make(slip):
    keras.utils.set_random_seed(5)
    layer = RelativeHeads(32, 4, slip)
    layer.build((None, None, 32))
    return layer


def asks():
    x = np.random.default_rng(0).standard_normal((2, 7, 32)).astype("float32")
    return dict(inputs=dict(x=ops.convert_to_tensor(x)), like=right())


def wrong(): return make(True)
def right(): return make(False)


def proof():
    x = asks()["inputs"]["x"]
    r = right()
    same = [np.allclose(a, b) for a, b in zip(wrong().get_weights(), r.get_weights())]
    # of the mended layer's table, entry (t, s) of the shift is distance t - s
    t = 7
    marks = ops.convert_to_tensor(np.tile(np.arange(t - 1, -t, -1.), (1, 1, t, 1)))
    want = np.arange(t)[:, None] - np.arange(t)[None]
    good = np.allclose(ops.convert_to_numpy(r.shift(marks))[0, 0], want)
    a, b = (ops.convert_to_numpy(m(x)) for m in (wrong(), r))
    return all(same) and good and not np.allclose(a, b, atol=1e-3)
