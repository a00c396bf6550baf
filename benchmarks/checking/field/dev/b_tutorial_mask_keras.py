"""The look-ahead mask of the transformer tutorial (1 = hide) is given to keras.layers.MultiHeadAttention, where 1 = attend. Source: github.com/tensorflow/tensorflow/issues/45854"""
import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np
import torch
from keras import ops

import intently as it

expect = ["mask-inverted"]
words = "1 in the mask means hide, the Keras layer reads it as attend"


def asks():
    return dict(inputs=dict(x=torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(1))), mask=it.causal())


class DecoderSelfAttention(keras.layers.Layer):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.mha = keras.layers.MultiHeadAttention(num_heads=4, key_dim=8)

    def build(self, shape):
        self.mha.build(shape, shape)

    def look_ahead(self, size):
        return 1.0 - ops.tril(ops.ones((size, size)))

    def call(self, x):
        mask = self.look_ahead(x.shape[1])
        if self.flip:
            mask = 1.0 - mask
        return self.mha(x, x, attention_mask=mask[None])


def _make(flip):
    keras.utils.set_random_seed(0)
    layer = DecoderSelfAttention(flip)
    layer.build((2, 6, 32))
    return layer


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    x = asks()["inputs"]["x"]
    a, b = (ops.convert_to_numpy(f()(x)) for f in (wrong, right))
    return np.abs(a - b).max() > 1e-2


if __name__ == "__main__":
    print(proof())
