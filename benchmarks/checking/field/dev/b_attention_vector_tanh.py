"""The attention vector of a Luong decoder is Wc [c; h] without the tanh of its formula. Source: github.com/tensorflow/nmt/issues/257"""
import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import torch
from keras import ops

expect = ["differs-from-reference", "output-changed"]
words = "a dense layer without activation where tanh(Wc [c; h]) is meant"


class LuongAttention(keras.layers.Layer):
    def __init__(self, fixed, units=24):
        super().__init__()
        self.memory = keras.layers.Dense(units, use_bias=False, kernel_initializer=keras.initializers.GlorotNormal(seed=1))
        self.vector = keras.layers.Dense(units, use_bias=False, activation="tanh" if fixed else None,
                                         kernel_initializer=keras.initializers.GlorotNormal(seed=2))

    def call(self, cell_output, encoder_outputs):
        keys = self.memory(encoder_outputs)
        score = ops.einsum("btc,bsc->bts", cell_output, keys)
        context = ops.matmul(ops.softmax(score, axis=-1), keys)
        return self.vector(ops.concatenate((context, cell_output), -1))


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(cell_output=torch.randn(2, 5, 24), encoder_outputs=torch.randn(2, 7, 24)), scale=1.0, like=right())


def _make(fixed):
    layer = LuongAttention(fixed)
    layer(torch.zeros(1, 2, 24), torch.zeros(1, 3, 24))
    return layer


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    return not torch.allclose(wrong()(**a), right()(**a), atol=1e-2) and torch.allclose(torch.tanh(wrong()(**a)), right()(**a), atol=1e-5)
