"""A sequential recommender hides padded items only: no mask keeps an item from the items after it. Source: github.com/ZiyaoGeng/RecLearn/issues/81"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import numpy as np
import keras
from keras import ops
import intently as it

expect = ["mask-missing"]
words = "there is a padding mask, the causal mask is missing"


def asks():
    return dict(inputs=dict(ids=np.random.default_rng(3).integers(1, 30, (2, 7))), mask=it.causal())


class ItemAttention(keras.layers.Layer):
    ahead = True

    def __init__(self, width, heads):
        super().__init__()
        self.width, self.heads = width, heads
        self.ask, self.answer, self.content = (keras.layers.Dense(width, use_bias=False) for _ in range(3))

    def call(self, x, real):
        b, t = x.shape[0], x.shape[1]
        cut = lambda z: ops.transpose(ops.reshape(z, (b, t, self.heads, self.width // self.heads)), (0, 2, 1, 3))
        q, k, v = cut(self.ask(x)), cut(self.answer(x)), cut(self.content(x))
        score = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / (self.width // self.heads) ** 0.5
        seen = real[:, None, None, :]
        if not self.ahead:
            steps = ops.arange(t)
            seen = ops.logical_and(seen, (steps[:, None] >= steps[None, :])[None, None])
        share = ops.softmax(ops.where(seen, score, -1e9), axis=-1)
        return ops.reshape(ops.transpose(ops.matmul(share, v), (0, 2, 1, 3)), (b, t, self.width))


class ItemAttentionMended(ItemAttention):
    ahead = False


class Recommender(keras.Model):
    def __init__(self, kind):
        super().__init__()
        self.items, self.steps = keras.layers.Embedding(30, 32), keras.layers.Embedding(16, 32)
        self.attention = kind(32, 2)
        self.norm, self.norm2 = keras.layers.LayerNormalization(), keras.layers.LayerNormalization()
        self.wide, self.narrow = keras.layers.Dense(64, activation="relu"), keras.layers.Dense(32)

    def call(self, ids):
        x = self.items(ids) + self.steps(ops.arange(ids.shape[1]))[None]
        x = self.norm(x + self.attention(x, ops.not_equal(ids, 0)))
        return self.norm2(x + self.narrow(self.wide(x)))


def _made(kind):
    keras.utils.set_random_seed(0)
    model = Recommender(kind)
    model(ops.convert_to_tensor(np.ones((2, 7), "int64")))
    return model


def wrong():
    return _made(ItemAttention)


def right():
    return _made(ItemAttentionMended)


def proof():
    x = asks()["inputs"]["ids"]
    y = x.copy()
    y[:, -1] = y[:, -1] % 29 + 1
    run = lambda f, z: ops.convert_to_numpy(f(ops.convert_to_tensor(z)))[:, :-1]
    moved = lambda f: np.abs(run(f, x) - run(f, y)).max() > 1e-4
    return bool(moved(wrong()) and not moved(right()))
