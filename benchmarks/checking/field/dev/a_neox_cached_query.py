"""The cache keeps keys unrotated and rotates all of them at each step, but the query of a step is rotated as position 0. Source: github.com/keras-team/keras-hub/keras_hub/src/models/gpt_neo_x/gpt_neo_x_attention.py"""
import os; os.environ.setdefault("KERAS_BACKEND", "torch")
import keras, torch
from keras import ops
expect = ["position-offset-lost", "rotation-offset-lost", "cached-step-differs"]
words = "with a cache the query is rotated from position 0, whatever cache_update_index is"
def turn(x, start=0):
    d = x.shape[-1]
    f = ops.outer(ops.arange(x.shape[1], dtype="float32") + start, 10000.0 ** (-ops.arange(0, d, 2, dtype="float32") / d))
    c, s = (ops.concatenate([g, g], -1)[None, :, None] for g in (ops.cos(f), ops.sin(f)))
    return x * c + ops.concatenate([-x[..., d // 2:], x[..., :d // 2]], -1) * s
class StepAttention(keras.layers.Layer):
    def __init__(self, heads, width, mindful, **kw):
        super().__init__(**kw)
        self.h, self.d, self.mindful = heads, width // heads, mindful
        self.fused, self.out = keras.layers.Dense(3 * width), keras.layers.Dense(width)
    def call(self, x, cache=None, at=None):
        b, t, c = x.shape
        y = ops.reshape(self.fused(x), (b, t, self.h, 3 * self.d))
        q, k, v = y[..., :self.d], y[..., self.d:2 * self.d], y[..., 2 * self.d:]
        if cache is not None:
            k = ops.slice_update(cache[:, 0], [0, at, 0, 0], k); v = ops.slice_update(cache[:, 1], [0, at, 0, 0], v)
        start = (at or 0) if self.mindful else 0
        q, k = turn(q, start), turn(k)
        z = ops.einsum("bthd,bshd->bhts", q, k) / self.d ** 0.5
        i, j = ops.arange(t)[:, None] + (at or 0), ops.arange(k.shape[1])[None]
        w = ops.softmax(ops.where(i >= j, z, -1e9), -1)
        return self.out(ops.reshape(ops.einsum("bhts,bshd->bthd", w, v), (b, t, c)))
def asks():
    g = torch.Generator().manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 1, 32, generator=g), cache=torch.randn(2, 2, 6, 4, 8, generator=g), at=5))
def _make(m): keras.utils.set_random_seed(0); l = StepAttention(4, 32, m); l(torch.randn(2, 3, 32)); return l.eval()
def wrong(): return _make(False)
def right(): return _make(True)
def proof(): a = asks()["inputs"]; return bool((wrong()(**a) - right()(**a)).abs().max() > 1e-3)
