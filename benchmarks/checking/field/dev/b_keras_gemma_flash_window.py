"""The layer returns from its fused branch before the sliding window is put on the mask. Source: github.com/keras-team/keras-hub/issues/2186"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import numpy as np
import keras
from keras import ops
import intently as it

expect = ["window-missing"]
words = "with flash attention the sliding window mask is never used"


def rotate(x, base=10000.0):
    half = x.shape[-1] // 2
    at = ops.cast(ops.arange(x.shape[1]), "float32")
    speed = base ** (-np.arange(half, dtype="float32") / half)
    angle = at[:, None] * ops.convert_to_tensor(speed)[None]
    cos, sin = ops.cos(angle)[None, :, None], ops.sin(angle)[None, :, None]
    a, b = x[..., :half], x[..., half:]
    return ops.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


class WindowedAttention(keras.layers.Layer):
    def __init__(self, width=32, heads=4, kv_heads=2, head_dim=8, window=3, window_first=True, flash=True):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.window = heads, kv_heads, head_dim, window
        self.window_first, self.flash = window_first, flash
        dense = lambda n: keras.layers.EinsumDense("btd,ndh->btnh", output_shape=(None, n, head_dim))
        self.query_dense, self.key_dense, self.value_dense = dense(heads), dense(kv_heads), dense(kv_heads)
        self.output_dense = keras.layers.EinsumDense("btnh,nhd->btd", output_shape=(None, width))
        for layer in (self.query_dense, self.key_dense, self.value_dense):
            layer.build((None, None, width))
        self.output_dense.build((None, None, heads, head_dim))
        self.built = True

    def with_window(self, mask):
        t = mask.shape[-1]
        ones = ops.ones((t, t), dtype="bool")
        band = ops.logical_and(ops.triu(ones, -self.window + 1), ops.tril(ones, self.window - 1))
        return ops.logical_and(mask, band[None])

    def call(self, x, attention_mask):
        q = rotate(self.query_dense(x))
        k = rotate(self.key_dense(x))
        v = self.value_dense(x)
        if self.window_first:
            attention_mask = self.with_window(attention_mask)
        scale = self.head_dim ** -0.5
        group = self.heads // self.kv_heads
        k, v = ops.repeat(k, group, axis=2), ops.repeat(v, group, axis=2)
        if self.flash:
            y = ops.dot_product_attention(q, k, v, mask=attention_mask[:, None], scale=scale)
            return self.output_dense(y)
        if not self.window_first:
            attention_mask = self.with_window(attention_mask)
        z = ops.einsum("btnh,bsnh->bnts", q * scale, k)
        z = ops.where(attention_mask[:, None], z, -1e30)
        y = ops.einsum("bnts,bsnh->btnh", ops.softmax(z, axis=-1), v)
        return self.output_dense(y)


def asks():
    g = np.random.default_rng(0)
    mask = np.broadcast_to(np.tril(np.ones((8, 8), bool)), (2, 8, 8)).copy()
    inputs = dict(x=ops.convert_to_tensor(g.standard_normal((2, 8, 32)).astype("float32")),
                  attention_mask=ops.convert_to_tensor(mask))
    return dict(inputs=inputs, mask=it.window(2, 0))


def wrong():
    keras.utils.set_random_seed(0)
    return WindowedAttention(window_first=False)


def right():
    keras.utils.set_random_seed(0)
    return WindowedAttention(window_first=True)


def plain():
    keras.utils.set_random_seed(0)
    return WindowedAttention(window_first=False, flash=False)


def proof():
    i = asks()["inputs"]
    y = [ops.convert_to_numpy(f()(**i)) for f in (wrong, right, plain)]
    return bool(np.abs(y[0] - y[1]).max() > 1e-3 and np.abs(y[2] - y[1]).max() < 1e-5)
