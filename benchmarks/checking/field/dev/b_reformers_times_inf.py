"""The mask is blended in as dots * mask + (1 - mask) * -inf, and 0 * -inf is NaN. Source: github.com/cerebroai/reformers/issues/3"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import numpy as np
import keras
from keras import ops
import intently as it

expect = ["nan-with-keys"]
words = "every score of a key that is allowed becomes NaN"


class MaskedAttention(keras.layers.Layer):
    def __init__(self, width=32, heads=4, far=float("-inf")):
        super().__init__()
        self.heads, self.far = heads, far
        dense = lambda: keras.layers.Dense(width, use_bias=False)
        self.to_q, self.to_k, self.to_v, self.to_out = dense(), dense(), dense(), dense()
        for layer in (self.to_q, self.to_k, self.to_v, self.to_out):
            layer.build((None, None, width))
        self.built = True

    def call(self, x, input_mask):
        b, t, c = x.shape
        d = c // self.heads
        cut = lambda y: ops.transpose(ops.reshape(y, (b, t, self.heads, d)), (0, 2, 1, 3))
        q, k, v = cut(self.to_q(x)), cut(self.to_k(x)), cut(self.to_v(x))
        dots = ops.einsum("bhie,bhje->bhij", q, k) * d ** -0.5
        mask = ops.cast(input_mask, "float32")[:, None, None, :]
        dots = ops.multiply(dots, mask) + (1.0 - mask) * self.far
        y = ops.einsum("bhij,bhje->bhie", ops.softmax(dots, axis=-1), v)
        return self.to_out(ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (b, t, c)))


LENGTHS = [6, 4]


def asks():
    x = np.random.default_rng(0).standard_normal((2, 7, 32)).astype("float32")
    mask = np.arange(7)[None] < np.array(LENGTHS)[:, None]
    return dict(inputs=dict(x=ops.convert_to_tensor(x), input_mask=ops.convert_to_tensor(mask)),
                mask=it.padding(LENGTHS))


def wrong():
    keras.utils.set_random_seed(0)
    return MaskedAttention(far=float("-inf"))


def right():
    keras.utils.set_random_seed(0)
    return MaskedAttention(far=-1e9)


def proof():
    i = asks()["inputs"]
    bad = lambda f: bool(np.isnan(ops.convert_to_numpy(f()(**i))).any())
    return bad(wrong) and not bad(right)
