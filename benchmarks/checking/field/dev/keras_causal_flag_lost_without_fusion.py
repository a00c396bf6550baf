"""A causal-only fast path drops the mask and relies on the fused kernel, which is not used with dropout or returned scores. Source: github.com/keras-team/keras/issues/23038"""
import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np
from keras import layers, ops

expect = ["mask-in-one-path", "mask-missing"]
words = "with dropout configured or scores returned, later tokens are seen"


class CausalAttention(layers.Layer):
    def __init__(self, width=32, heads=4, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.part, self.rate = heads, width // heads, dropout
        self.query, self.key, self.value = (layers.Dense(width) for _ in range(3))
        self.output_dense = layers.Dense(width)
        self.drop = layers.Dropout(dropout)

    def manual_mask(self, t):
        return None

    def call(self, x, return_attention_scores=False, training=False):
        b, t = ops.shape(x)[0], ops.shape(x)[1]
        q, k, v = (ops.reshape(f(x), (b, t, self.heads, self.part)) for f in (self.query, self.key, self.value))
        if self.rate == 0.0 and not return_attention_scores:
            y = ops.nn.dot_product_attention(q, k, v, is_causal=True)
            return self.output_dense(ops.reshape(y, (b, t, -1)))
        scores = ops.einsum("bthd,bshd->bhts", q, k) * self.part**-0.5
        mask = self.manual_mask(t)
        if mask is not None:
            scores = ops.where(mask, scores, -1e9)
        scores = ops.softmax(scores, axis=-1)
        y = ops.einsum("bhts,bshd->bthd", self.drop(scores, training=training), v)
        y = self.output_dense(ops.reshape(y, (b, t, -1)))
        return (y, scores) if return_attention_scores else y


class Mended(CausalAttention):
    def manual_mask(self, t):
        at = ops.arange(t)
        return at[:, None] >= at[None, :]


def asks():
    import intently as it

    r = np.random.default_rng(1)
    x = ops.convert_to_tensor(r.standard_normal((2, 7, 32)).astype("float32"))
    return dict(inputs=dict(x=x, return_attention_scores=True), mask=it.causal())


def _make(kind):
    keras.utils.set_random_seed(0)
    layer = kind()
    layer(asks()["inputs"]["x"])
    return layer


def wrong():
    return _make(CausalAttention)


def right():
    return _make(Mended)


def proof():
    x = asks()["inputs"]["x"]
    n = ops.convert_to_numpy
    a, b = wrong(), right()
    same = np.allclose(n(a(x)), n(b(x)), atol=1e-5) and np.allclose(n(b(x)), n(b(x, return_attention_scores=True)[0]), atol=1e-4)
    return same and not np.allclose(n(a(x, return_attention_scores=True)[0]), n(b(x)), atol=1e-3)
