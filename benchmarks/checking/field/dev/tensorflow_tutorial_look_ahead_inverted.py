"""The tutorial's look-ahead mask, 1 where attention is forbidden, is given to Keras' own layer, which attends where it is 1. Source: github.com/tensorflow/text/pull/894"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import torch
from keras import layers, ops
import intently as it

expect = ["mask-inverted"]
words = "each position attends to later positions only"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 6, 32)), mask=it.causal())

class DecoderBlock(layers.Layer):
    def __init__(self, forbids):
        super().__init__()
        self.mha = layers.MultiHeadAttention(num_heads=4, key_dim=8)
        self.mha.build((None, None, 32), (None, None, 32))
        self.norm = layers.LayerNormalization()
        self.norm.build((None, None, 32))
        self.forbids = forbids
        self.built = True

    def call(self, x):
        n = x.shape[1]
        ahead = 1 - ops.tril(ops.ones((n, n)))
        mask = ahead if self.forbids else 1 - ahead
        return self.norm(x + self.mha(x, x, attention_mask=mask[None]))

def wrong():
    keras.utils.set_random_seed(1)
    return DecoderBlock(True)

def right():
    keras.utils.set_random_seed(1)
    return DecoderBlock(False)

def proof():
    x = asks()["inputs"]["x"]
    later = torch.cat((x[:, :5], torch.randn(2, 1, 32)), 1)
    w, r = wrong(), right()
    return bool(torch.allclose(r(x)[:, :5], r(later)[:, :5], atol=1e-5) and (w(x)[:, :5] - w(later)[:, :5]).abs().max() > .02)
