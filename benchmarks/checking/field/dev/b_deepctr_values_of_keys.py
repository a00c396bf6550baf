"""`keys` is overwritten by its projection before the values are projected from it, so values are x W_key W_value. Source: github.com/shenweichen/DeepCTR/issues/490"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import numpy as np
import keras
from keras import ops
import intently as it

expect = ["values-are-keys"]
words = "values are a projection of the projected keys, not of the input"


class SequenceTransformer(keras.layers.Layer):
    def __init__(self, heads=2, size=8, order="keys first"):
        super().__init__()
        self.heads, self.size, self.order = heads, size, order
        c = heads * size
        self.w_query = self.add_weight(shape=(c, c), initializer="glorot_normal", name="query")
        self.w_key = self.add_weight(shape=(c, c), initializer="glorot_normal", name="key")
        self.w_value = self.add_weight(shape=(c, c), initializer="glorot_normal", name="value")
        self.built = True

    def call(self, queries, keys, keys_length):
        s = keys.shape[1]
        keep = ops.arange(s)[None, :] < keys_length[:, None]
        queries = ops.tensordot(queries, self.w_query, axes=(-1, 0))
        if self.order == "keys first":
            keys = ops.tensordot(keys, self.w_key, axes=(-1, 0))
            values = ops.tensordot(keys, self.w_value, axes=(-1, 0))
        else:
            values = ops.tensordot(keys, self.w_value, axes=(-1, 0))
            keys = ops.tensordot(keys, self.w_key, axes=(-1, 0))
        cut = lambda x: ops.concatenate(ops.split(x, self.heads, axis=2), axis=0)   # (h b) t d
        q, k, v = cut(queries), cut(keys), cut(values)
        z = ops.matmul(q, ops.transpose(k, (0, 2, 1))) / self.size ** 0.5
        z = ops.where(ops.tile(keep, (self.heads, 1))[:, None, :], z, float(-2 ** 32 + 1))
        y = ops.matmul(ops.softmax(z, axis=-1), v)
        return ops.concatenate(ops.split(y, self.heads, axis=0), axis=2)


LENGTHS = [5, 3]


def asks():
    g = np.random.default_rng(0)
    tensor = lambda *s: ops.convert_to_tensor(g.standard_normal(s).astype("float32"))
    x = tensor(2, 6, 16)
    return dict(inputs=dict(queries=x, keys=x, keys_length=ops.convert_to_tensor(np.array(LENGTHS))),
                mask=it.padding(LENGTHS))


def wrong():
    keras.utils.set_random_seed(0)
    return SequenceTransformer(order="keys first")


def right():
    keras.utils.set_random_seed(0)
    return SequenceTransformer(order="values first")


def proof():
    i = asks()["inputs"]
    return float(ops.max(ops.abs(wrong()(**i) - right()(**i))).detach()) > 1e-2
