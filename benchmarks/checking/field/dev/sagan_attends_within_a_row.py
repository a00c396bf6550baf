"""The attention of a GAN multiplies maps (batch, row, column, channel) as they are, so pixels meet those of their own row only, and then normalises over all pixels that ask. Source: github.com/taki0112/Self-Attention-GAN-Tensorflow/issues/3"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
from keras import layers, ops
import numpy as np
import torch

expect = ["softmax-over-queries", "mask-other", "not-normalised"]
words = "maps are not flattened before the product: a pixel attends within its row, and the softmax runs over all queries of a column"


class MapAttention(layers.Layer):
    def __init__(self, channels=16, **kwargs):
        super().__init__(**kwargs)
        self.f_conv, self.g_conv = layers.Conv2D(channels // 2, 1), layers.Conv2D(channels // 2, 1)
        self.h_conv = layers.Conv2D(channels, 1)

    def build(self, shape):
        self.gamma = self.add_weight(shape=(1,), initializer=keras.initializers.Constant(0.7), name="gamma")

    def mix(self, f, g, h):
        b, rows, columns, c = ops.shape(h)
        flat = lambda y: ops.reshape(y, (b, rows * columns, -1))
        s = ops.matmul(flat(g), ops.transpose(flat(f), (0, 2, 1)))
        return ops.reshape(ops.matmul(ops.softmax(s, axis=-1), flat(h)), (b, rows, columns, c))

    def call(self, x):
        return self.gamma * self.mix(self.f_conv(x), self.g_conv(x), self.h_conv(x)) + x


class Reported(MapAttention):
    def mix(self, f, g, h):
        s = ops.matmul(g, ops.transpose(f, (0, 1, 3, 2)))
        b, rows, columns, keys = ops.shape(s)
        beta = ops.softmax(ops.reshape(s, (b, -1, keys)), axis=1)
        return ops.matmul(ops.reshape(beta, (b, rows, columns, keys)), h)


def asks():
    return dict(inputs=dict(x=torch.randn(2, 3, 4, 16)), scale=1.0)


def _make(cls):
    keras.utils.set_random_seed(0)
    layer = cls()
    layer(np.zeros((1, 3, 4, 16), "float32"))
    return layer


def wrong():
    return _make(Reported)


def right():
    return _make(MapAttention)


def proof():
    x = asks()["inputs"]["x"]
    other = x.clone()
    other[:, 2, 0] = 0
    f, g, h = (torch.randn(2, 3, 4, n) for n in (8, 8, 16))
    constant = torch.ones_like(h)
    kept = torch.allclose(right().mix(f, g, constant), constant, atol=1e-5)
    return kept and not torch.allclose(wrong().mix(f, g, constant), constant, atol=1e-2) and not torch.allclose(wrong()(x), right()(x), atol=1e-3)
