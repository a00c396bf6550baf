"""The sliding window is laid out as if queries started at position 0, so a cached step sees the first keys of the text. Source: github.com/keras-team/keras-hub/pull/1738"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import numpy as np
import keras
from keras import ops
import intently as it

expect = ["mask-top-left", "mask-other", "window-off-in-cache", "cached-step-differs"]
words = "the window of a generated token is cut at the row of query 0 instead of at the cache index"


def rotate(x, start, base=10000.0):
    half = x.shape[-1] // 2
    at = ops.cast(ops.arange(x.shape[1]) + start, "float32")
    angle = at[:, None] * ops.convert_to_tensor(base ** (-np.arange(half, dtype="float32") / half))[None]
    cos, sin = ops.cos(angle)[None, :, None], ops.sin(angle)[None, :, None]
    a, b = x[..., :half], x[..., half:]
    return ops.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


class CachedWindowAttention(keras.layers.Layer):
    def __init__(self, width=32, heads=4, kv_heads=2, window=3, from_cache_index=True):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, width // heads
        self.window, self.from_cache_index = window, from_cache_index
        dense = lambda n: keras.layers.EinsumDense("btd,dnh->btnh", output_shape=(None, n, self.dim))
        self.q, self.k, self.v = dense(heads), dense(kv_heads), dense(kv_heads)
        self.o = keras.layers.EinsumDense("btnh,nhd->btd", output_shape=(None, width))
        for layer in (self.q, self.k, self.v):
            layer.build((None, None, width))
        self.o.build((None, None, heads, self.dim))
        self.built = True

    def window_mask(self, attention_mask, index):
        t, s = attention_mask.shape[-2:]
        if self.from_cache_index:
            ones = ops.ones((s, s), dtype="bool")
        else:
            ones = ops.ones((t, s), dtype="bool")
        band = ops.logical_and(ops.triu(ones, -self.window + 1), ops.tril(ones, self.window - 1))
        if self.from_cache_index:
            band = ops.slice(band, (index, 0), (t, s))
        return ops.logical_and(attention_mask, band[None])

    def call(self, x, attention_mask, cache=None, cache_update_index=0):
        q = rotate(self.q(x), cache_update_index)
        k, v = rotate(self.k(x), cache_update_index), self.v(x)
        if cache is not None:
            at = (0, cache_update_index, 0, 0)
            k = ops.slice_update(cache[:, 0], at, k)
            v = ops.slice_update(cache[:, 1], at, v)
            cache = ops.stack((k, v), axis=1)
        group = self.heads // self.kv_heads
        keep = self.window_mask(attention_mask, cache_update_index)[:, None]
        z = ops.einsum("btnh,bsnh->bnts", q, ops.repeat(k, group, axis=2)) / self.dim ** 0.5
        w = ops.softmax(ops.where(keep, z, -1e9), axis=-1)
        y = self.o(ops.einsum("bnts,bsnh->btnh", w, ops.repeat(v, group, axis=2)))
        return y if cache is None else (y, cache)


STEP, LENGTH = 6, 9


def asks():
    g = np.random.default_rng(5)
    tensor = lambda a: ops.convert_to_tensor(a.astype("float32"))
    cache = g.standard_normal((2, 2, LENGTH, 2, 8))
    cache[:, :, STEP:] = 0
    mask = np.broadcast_to(np.arange(LENGTH) <= STEP, (2, 1, LENGTH)).copy()
    inputs = dict(x=tensor(g.standard_normal((2, 1, 32))), attention_mask=ops.convert_to_tensor(mask),
                  cache=tensor(cache), cache_update_index=STEP)
    return dict(inputs=inputs, mask=it.window(2, 0, offset=STEP))


def wrong():
    keras.utils.set_random_seed(1)
    return CachedWindowAttention(from_cache_index=False)


def right():
    keras.utils.set_random_seed(1)
    return CachedWindowAttention(from_cache_index=True)


def steps_equal_the_whole(make):
    layer = make()
    x = ops.convert_to_tensor(np.random.default_rng(6).standard_normal((2, 7, 32)).astype("float32"))
    causal = np.tril(np.ones((9, 9), bool))
    whole = layer(x, ops.convert_to_tensor(causal[None, :7, :7].repeat(2, 0)))
    cache, rows = ops.zeros((2, 2, 9, 2, 8)), []
    for i in range(7):
        y, cache = layer(x[:, i:i + 1], ops.convert_to_tensor(causal[None, i:i + 1].repeat(2, 0)), cache=cache, cache_update_index=i)
        rows.append(y)
    return float(ops.max(ops.abs(ops.concatenate(rows, axis=1) - whole)))


def proof():
    i = asks()["inputs"]
    a, b = wrong()(**i)[0], right()(**i)[0]
    differ = float(ops.max(ops.abs(a - b))) > 1e-3
    return differ and steps_equal_the_whole(right) < 1e-5 < 1e-3 < steps_equal_the_whole(wrong)
