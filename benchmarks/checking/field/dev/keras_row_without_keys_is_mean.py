"""A softmax layer adds a large negative number to masked scores: a text that is all padding gets the mean of its padding. Source: github.com/keras-team/keras/issues/21123"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import math
import keras
import torch
from keras import layers, ops
import intently as it

expect = ["mean-without-keys"]
words = "where every key is hidden, weights are 1 / s in place of 0"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 6, 32), keep=torch.arange(6) < torch.tensor([[4], [0]])), mask=it.padding([4, 0]))

class MaskedSoftmax(layers.Layer):
    def __init__(self, zeroes):
        super().__init__()
        self.zeroes = zeroes

    def call(self, z, keep):
        keep = ops.cast(keep, z.dtype)
        p = ops.softmax(z + (1.0 - keep) * -3e38 / 2, axis=-1)
        return p * keep if self.zeroes else p

class SelfAttention(layers.Layer):
    def __init__(self, zeroes, heads=4, width=32):
        super().__init__()
        self.q, self.k, self.v = (layers.Dense(width, use_bias=False) for _ in range(3))
        for one in (self.q, self.k, self.v):
            one.build((None, None, width))
        self.softmax = MaskedSoftmax(zeroes)
        self.h = heads
        self.built = True

    def call(self, x, keep):
        b, t, c = x.shape
        q, k, v = (ops.transpose(ops.reshape(f(x), (b, t, self.h, -1)), (0, 2, 1, 3)) for f in (self.q, self.k, self.v))
        z = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / math.sqrt(c // self.h)
        y = ops.matmul(self.softmax(z, keep[:, None, None, :]), v)
        return ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (b, t, c))

def wrong():
    keras.utils.set_random_seed(1)
    return SelfAttention(False)

def right():
    keras.utils.set_random_seed(1)
    return SelfAttention(True)

def proof():
    i = asks()["inputs"]
    w = wrong()
    mean = w.v(i["x"])[1].mean(0)
    return bool(torch.allclose(w(**i)[1], mean.expand(6, -1), atol=1e-5) and right()(**i)[1].abs().max() == 0
                and torch.allclose(w(**i)[0], right()(**i)[0], atol=1e-5))
