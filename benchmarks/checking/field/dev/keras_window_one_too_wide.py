"""A window of w sees the token itself and w before it: one more than the model it copies. Source: github.com/keras-team/keras-hub/keras_hub/src/models/gpt_oss/gpt_oss_attention.py"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import numpy as np
import keras
from keras import ops

expect = ['window-off-by-one']
words = 'a window of 3 sees 4 tokens'


class WindowHeads(keras.layers.Layer):
    """Causal attention in a window, with sinks."""

    reach = 0

    def __init__(self, heads, window, **kw):
        super().__init__(**kw)
        self.heads, self.window = heads, window

    def build(self, shape):
        c = shape[-1]
        self.q, self.k, self.v = (keras.layers.Dense(c, use_bias=False) for _ in range(3))
        for d in (self.q, self.k, self.v):
            d.build(shape)
        self.out = keras.layers.Dense(c)
        self.out.build(shape)
        self.sinks = self.add_weight(shape=(self.heads,), initializer="random_normal", name="sinks")

    def call(self, x):
        b, t, c = ops.shape(x)
        lay = lambda z: ops.reshape(z, (b, t, self.heads, c // self.heads))
        s = ops.einsum("bqhd,bkhd->bhqk", lay(self.q(x)), lay(self.k(x))) / (c // self.heads) ** 0.5
        i, j = ops.arange(t)[:, None], ops.arange(t)[None, :]
        seen = ops.logical_and(j <= i, j >= i - self.window + self.reach)
        s = ops.where(seen[None, None], s, -1e9)
        sink = ops.broadcast_to(ops.reshape(self.sinks, (1, self.heads, 1, 1)), (b, self.heads, t, 1))
        w = ops.softmax(ops.concatenate([s, sink], axis=-1), axis=-1)[..., :-1]
        return self.out(ops.reshape(ops.einsum("bhqk,bkhd->bqhd", w, lay(self.v(x))), (b, t, c)))


class Mended(WindowHeads):
    reach = 1


def asks():
    import intently as it
    return dict(inputs=dict(x=np.random.default_rng(1).normal(size=(2, 8, 32)).astype("float32")), mask=it.window(2, 0))


def wrong(kind=WindowHeads):
    keras.utils.set_random_seed(0)
    m = kind(4, 3)
    m(np.zeros((2, 8, 32), "float32"))
    return m


def right():
    return wrong(Mended)


def proof():
    x = asks()["inputs"]
    a, b = (ops.convert_to_numpy(f()(**x)) for f in (wrong, right))
    return not np.allclose(a, b, atol=1e-3)
