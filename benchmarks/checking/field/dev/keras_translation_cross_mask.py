"""The decoder of a translation example hides source words by the causal mask of the target. Source: github.com/keras-team/keras-io/pull/1046"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import torch
from keras import layers, ops

expect = ["cross-causal", "mask-other"]
words = "attention to the encoder has the mask of the decoder: minimum(target padding, causal)"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(target=torch.randn(2, 7, 32), source=torch.randn(2, 7, 32),
                            target_keep=torch.arange(7) < torch.tensor([[7], [6]])))

class Decoder(layers.Layer):
    def __init__(self, mixed):
        super().__init__()
        self.own = layers.MultiHeadAttention(4, 8)
        self.other = layers.MultiHeadAttention(4, 8)
        self.own.build((None, None, 32), (None, None, 32))
        self.other.build((None, None, 32), (None, None, 32))
        self.norm, self.norm2 = layers.LayerNormalization(), layers.LayerNormalization()
        self.norm.build((None, None, 32))
        self.norm2.build((None, None, 32))
        self.mixed = mixed
        self.built = True

    def call(self, target, source, target_keep):
        n = ops.shape(target)[1]
        i, j = ops.arange(n)[:, None], ops.arange(n)
        past = ops.cast(i >= j, "int32")[None]
        x = self.norm(target + self.own(target, target, attention_mask=past))
        if self.mixed:
            pads = ops.minimum(ops.cast(target_keep[:, None, :], "int32"), past)
            seen = self.other(x, source, attention_mask=pads)
        else:
            seen = self.other(x, source)
        return self.norm2(x + seen)

def wrong():
    keras.utils.set_random_seed(1)
    return Decoder(True)

def right():
    keras.utils.set_random_seed(1)
    return Decoder(False)

def proof():
    i = asks()["inputs"]
    a, b = wrong()(**i), right()(**i)
    changed = dict(i, source=torch.cat((i["source"][:, :6], torch.randn(2, 1, 32)), 1))
    return bool((a - b).abs().max() > .02 and torch.allclose(wrong()(**changed)[:, :5], a[:, :5], atol=1e-5))
