"""A softmax over time divides by the sum over the last axis, which has one entry: weights are 1, and 0 / 0 at padding. Source: github.com/keras-team/keras-io/pull/1904"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import torch
from keras import layers, ops
import intently as it

expect = ["not-normalised", "nan-with-keys", "softmax-over-queries"]
words = "the denominator is summed over features instead of time steps"

def asks():
    torch.manual_seed(0)
    x = torch.randn(2, 7, 24)
    keep = torch.arange(7) < torch.tensor([[7], [4]])
    return dict(inputs=dict(x=x, mask=keep), mask=it.padding([7, 4]))

class StepSoftmax(layers.Layer):
    def __init__(self, axis):
        super().__init__()
        self.axis = axis
        self.supports_masking = True

    def call(self, scores, mask=None):
        keep = ops.expand_dims(ops.cast(mask, "float32"), -1)
        e = ops.exp(scores) * keep
        return e / ops.sum(e, axis=self.axis, keepdims=True)

class WordPool(layers.Layer):
    def __init__(self, axis):
        super().__init__()
        self.score = layers.Dense(1)
        self.score.build((None, None, 24))
        self.normalise = StepSoftmax(axis)
        self.built = True

    def call(self, x, mask=None):
        p = self.normalise(self.score(x), mask=mask)
        return ops.sum(p * x, axis=1)

def wrong():
    keras.utils.set_random_seed(1)
    return WordPool(-1)

def right():
    keras.utils.set_random_seed(1)
    return WordPool(1)

def proof():
    a, b = (f(**asks()["inputs"]).detach() for f in (wrong(), right()))
    full = asks()["inputs"]["x"][0].sum(0)
    return bool(torch.allclose(a[0], full, atol=1e-4) and a[1].isnan().all() and b.isfinite().all() and (a[0] - b[0]).abs().max() > .1)
