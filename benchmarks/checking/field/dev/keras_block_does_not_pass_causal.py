"""A layer around multi-head attention takes use_causal_mask and hands False on. Source: github.com/keras-team/keras/issues/21284"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import intently as it
import keras
import numpy as np
import torch
from keras import layers, ops

expect = ["mask-missing"]
words = "the block asks for a causal mask, the layer within drops the request"


def asks():
    return dict(inputs=dict(x=torch.randn(2, 7, 32)), mask=it.causal())


class Mixer(layers.Layer):
    def __init__(self, width, heads, forward_it, **kwargs):
        super().__init__(**kwargs)
        self.inner = layers.MultiHeadAttention(heads, width // heads)
        self.forward_it = forward_it

    def build(self, shape):
        self.inner.build(shape, shape)

    def call(self, x, mask=None, use_causal_mask=False):
        return self.inner(x, x, attention_mask=mask, use_causal_mask=use_causal_mask if self.forward_it else False)


class LanguageBlock(layers.Layer):
    def __init__(self, width, heads, forward_it, **kwargs):
        super().__init__(**kwargs)
        self.before, self.between = layers.LayerNormalization(), layers.LayerNormalization()
        self.mixer = Mixer(width, heads, forward_it)
        self.up, self.down = layers.Dense(2 * width, activation="gelu"), layers.Dense(width)
        self.width = width

    def build(self, shape):
        for layer in (self.before, self.between, self.mixer, self.up):
            layer.build(shape)
        self.down.build(tuple(shape[:-1]) + (2 * self.width,))

    def call(self, x):
        x = x + self.mixer(self.before(x), use_causal_mask=True)
        return x + self.down(self.up(self.between(x)))


def make(forward_it):
    keras.utils.set_random_seed(11)
    block = LanguageBlock(32, 4, forward_it)
    block.build((None, 7, 32))
    return block


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    x = torch.randn(2, 7, 32)
    later = x.clone()
    later[:, -1] = torch.randn(2, 32)
    leak = [np.abs(ops.convert_to_numpy(m(x) - m(later)))[:, :-1].max() for m in (wrong(), right())]
    return bool(leak[0] > 1e-3 and leak[1] < 1e-5)
