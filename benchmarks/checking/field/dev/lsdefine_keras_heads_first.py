"""Heads are folded in front of the batch, while the mask repeats each row for its heads, batch first. Source: github.com/lsdefine/attention-is-all-you-need-keras/issues/36"""
import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np
from keras import layers, ops

expect = ["mask-of-other-rows", "padding-attended"]
words = "scores are in the order (head, batch), the mask in the order (batch, head)"


class FoldedHeads(layers.Layer):
    def __init__(self, width=32, heads=4, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.part = heads, width // heads
        self.q = layers.Dense(width, use_bias=False)
        self.k = layers.Dense(width, use_bias=False)
        self.v = layers.Dense(width, use_bias=False)
        self.out = layers.Dense(width)
        self.norm = layers.LayerNormalization()

    def fold(self, x):
        b, n = ops.shape(x)[0], ops.shape(x)[1]
        x = ops.reshape(x, (b, n, self.heads, self.part))
        x = ops.transpose(x, (2, 0, 1, 3))
        return ops.reshape(x, (-1, n, self.part))

    def unfold(self, x, b):
        n = ops.shape(x)[1]
        x = ops.reshape(x, (self.heads, b, n, self.part))
        return ops.reshape(ops.transpose(x, (1, 2, 0, 3)), (b, n, self.heads * self.part))

    def spread(self, keep):
        return ops.repeat(keep, self.heads, axis=0)

    def call(self, x, keep):
        """x (b, n, c); keep (b, n), 1 for words and 0 for padding."""
        q, k, v = self.fold(self.q(x)), self.fold(self.k(x)), self.fold(self.v(x))
        scores = ops.matmul(q, ops.transpose(k, (0, 2, 1))) / self.part**0.5
        keep = self.spread(ops.cast(keep, scores.dtype))
        scores = scores + (1.0 - keep)[:, None, :] * -1e10
        y = ops.matmul(ops.softmax(scores, axis=-1), v)
        return self.norm(x + self.out(self.unfold(y, ops.shape(x)[0])))


class Mended(FoldedHeads):
    def spread(self, keep):
        return ops.tile(keep, (self.heads, 1))


_keep = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]], dtype="int32")


def asks():
    import intently as it

    r = np.random.default_rng(1)
    return dict(
        inputs=dict(x=ops.convert_to_tensor(r.standard_normal((2, 7, 32)).astype("float32")), keep=ops.convert_to_tensor(_keep)),
        mask=it.padding(_keep.astype(bool)),
    )


def _make(kind):
    keras.utils.set_random_seed(0)
    layer = kind()
    layer(**asks()["inputs"])
    return layer


def wrong():
    return _make(FoldedHeads)


def right():
    return _make(Mended)


def proof():
    x = asks()["inputs"]
    a, b = (ops.convert_to_numpy(f()(**x)) for f in (wrong, right))
    return not np.allclose(a, b, atol=1e-3)
