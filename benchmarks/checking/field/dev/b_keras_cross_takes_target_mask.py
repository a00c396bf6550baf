"""Cross-attention of the decoder gets the causal padding mask of the target, not the padding mask of the source. Source: github.com/keras-team/keras-io/issues/1964"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import torch
from keras import ops
import intently as it

expect = ["mask-other", "cross-causal", "padding-attended"]
words = "keys of the source are hidden by the causal mask and the padding of the target; padding of the source is attended to"


class SourceReader(keras.layers.Layer):
    def __init__(self, wide, heads, from_target, **kw):
        super().__init__(**kw)
        self.from_target = from_target
        self.read = keras.layers.MultiHeadAttention(num_heads=heads, key_dim=wide // heads)
        self.norm = keras.layers.LayerNormalization()

    def call(self, x, context, x_real=None, context_real=None):
        if self.from_target:
            n = x.shape[1]
            seen = ops.arange(n)[:, None] >= ops.arange(n)[None, :]
            allowed = seen[None]
            if x_real is not None:
                allowed = ops.logical_and(ops.cast(x_real, "bool")[:, None, :], allowed)
        else:
            allowed = None if context_real is None else ops.cast(context_real, "bool")[:, None, :]
        return self.norm(x + self.read(query=x, value=context, key=context, attention_mask=allowed))


SOURCE = [3, 6]


def asks():
    torch.manual_seed(0)
    at = torch.arange(6)
    return dict(
        inputs=dict(
            x=torch.randn(2, 6, 32),
            context=torch.randn(2, 6, 32),
            x_real=at < torch.tensor([6, 4])[:, None],
            context_real=at < torch.tensor(SOURCE)[:, None],
        ),
        mask=it.padding(SOURCE),
    )


def make(flag):
    keras.utils.set_random_seed(0)
    layer = SourceReader(32, 2, flag)
    layer(**asks()["inputs"])
    return layer


def wrong():
    return make(True)


def right():
    return make(False)


def proof():
    i = asks()["inputs"]
    j = dict(i, context=i["context"].clone())
    j["context"][0, 3:] += 5
    bad, good = wrong(), right()
    return bool((bad(**i) - bad(**j)).abs().max() > 1e-2) and bool((good(**i) - good(**j)).abs().max() < 1e-5)
