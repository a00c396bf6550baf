"""Key and value heads are tiled where the original model repeats each of them in place. Source: github.com/keras-team/keras-hub/pull/1203"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import numpy as np
import keras
from keras import ops
import intently as it

expect = ["key-heads-tiled"]
words = "query heads 0 and 1 should share key head 0; with tile heads 0 and 2 do"


def rotate(x):
    half = x.shape[-1] // 2
    at = ops.cast(ops.arange(x.shape[1]), "float32")
    angle = at[:, None] * ops.convert_to_tensor(10000.0 ** (-np.arange(half, dtype="float32") / half))[None]
    cos, sin = ops.cos(angle)[None, :, None], ops.sin(angle)[None, :, None]
    a, b = x[..., :half], x[..., half:]
    return ops.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


class GroupedAttention(keras.layers.Layer):
    heads, kv_heads, dim, width = 4, 2, 8, 32

    def __init__(self):
        super().__init__()
        dense = lambda n: keras.layers.EinsumDense("bqm,muh->bquh", output_shape=(None, n, self.dim))
        self.query_dense, self.key_dense, self.value_dense = dense(self.heads), dense(self.kv_heads), dense(self.kv_heads)
        self.output_dense = keras.layers.EinsumDense("bquh,uhm->bqm", output_shape=(None, self.width))
        for layer in (self.query_dense, self.key_dense, self.value_dense):
            layer.build((None, None, self.width))
        self.output_dense.build((None, None, self.heads, self.dim))
        self.built = True

    def mix(self, q, k, v, mask):
        k, v = self.widen(k), self.widen(v)
        z = ops.einsum("bquh,bkuh->buqk", q, k) / np.sqrt(self.dim)
        w = ops.softmax(ops.where(mask[:, None], z, -1e9), axis=-1)
        return ops.einsum("buqk,bkuh->bquh", w, v)

    def call(self, hidden_states, attention_mask):
        q, k = rotate(self.query_dense(hidden_states)), rotate(self.key_dense(hidden_states))
        v = self.value_dense(hidden_states)
        return self.output_dense(self.mix(q, k, v, attention_mask))


class Tiled(GroupedAttention):
    def widen(self, x):
        return ops.tile(x, [1, 1, self.heads // self.kv_heads, 1])


class Repeated(GroupedAttention):
    def widen(self, x):
        return ops.repeat(x, self.heads // self.kv_heads, axis=2)


class Original(GroupedAttention):
    """What the checkpoint was trained with: query heads in groups, one key head a group."""

    def mix(self, q, k, v, mask):
        b, t = q.shape[:2]
        q = ops.reshape(q, (b, t, self.kv_heads, self.heads // self.kv_heads, self.dim))
        z = ops.einsum("bqgrh,bkgh->bgrqk", q, k) / np.sqrt(self.dim)
        w = ops.softmax(ops.where(mask[:, None, None], z, -1e9), axis=-1)
        return ops.reshape(ops.einsum("bgrqk,bkgh->bqgrh", w, v), (b, t, self.heads, self.dim))


def build(kind):
    keras.utils.set_random_seed(2)
    return kind()


def asks():
    x = np.random.default_rng(0).standard_normal((2, 6, 32)).astype("float32")
    mask = np.broadcast_to(np.tril(np.ones((6, 6), bool)), (2, 6, 6)).copy()
    inputs = dict(hidden_states=ops.convert_to_tensor(x), attention_mask=ops.convert_to_tensor(mask))
    return dict(inputs=inputs, mask=it.causal(), like=build(Original))


def wrong():
    return build(Tiled)


def right():
    return build(Repeated)


def proof():
    a = asks()
    d = lambda f: float(ops.max(ops.abs(f(**a["inputs"]) - a["like"](**a["inputs"]))))
    return d(wrong()) > 1e-3 and d(right()) < 1e-5
