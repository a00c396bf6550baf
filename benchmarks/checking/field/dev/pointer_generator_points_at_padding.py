"""The decoder of a pointer-generator gives a share of its attention, and of the coverage it sums up, to padded source positions. Source: github.com/abisee/pointer-generator/issues/41"""
import keras
import numpy as np
from keras import ops
import intently as it

expect = ["padding-attended"]
words = "the softmax of each decoder step runs over all source positions, padding included"


class CoverageAttention(keras.layers.Layer):
    """Steps through decoder states; returns contexts (b, t, d) and attention distributions (b, t, s)."""

    def __init__(self, size, masked, **kwargs):
        super().__init__(**kwargs)
        self.size, self.masked = size, masked

    def build(self, decoder_shape, encoder_shape, mask_shape=None):
        rand = lambda seed: keras.initializers.RandomNormal(stddev=0.4, seed=seed)
        self.w_h = self.add_weight(shape=(encoder_shape[-1], self.size), initializer=rand(1), name="w_h")
        self.w_s = self.add_weight(shape=(decoder_shape[-1], self.size), initializer=rand(2), name="w_s")
        self.w_c = self.add_weight(shape=(self.size,), initializer=rand(3), name="w_c")
        self.b_attn = self.add_weight(shape=(self.size,), initializer=rand(4), name="b_attn")
        self.v = self.add_weight(shape=(self.size,), initializer=rand(5), name="v")
        self.built = True

    def call(self, decoder_states, encoder_states, enc_padding_mask):
        features = ops.matmul(encoder_states, self.w_h)
        real = ops.cast(enc_padding_mask, "float32")
        coverage = ops.zeros_like(real)
        contexts, dists = [], []
        for step in range(decoder_states.shape[1]):
            state = ops.matmul(decoder_states[:, step], self.w_s) + self.b_attn
            e = ops.sum(self.v * ops.tanh(features + state[:, None] + coverage[..., None] * self.w_c), axis=-1)
            dist = ops.softmax(e, axis=-1)
            if self.masked:
                dist = dist * real
                dist = dist / ops.sum(dist, axis=1, keepdims=True)
            coverage = coverage + dist
            contexts.append(ops.sum(dist[..., None] * encoder_states, axis=1))
            dists.append(dist)
        return ops.stack(contexts, axis=1), ops.stack(dists, axis=1)


def asks():
    import torch
    torch.manual_seed(3)
    real = (torch.arange(8)[None] < torch.tensor([8, 5])[:, None]).float()
    return dict(inputs=dict(decoder_states=torch.randn(2, 4, 16), encoder_states=torch.randn(2, 8, 24), enc_padding_mask=real),
                mask=it.padding(real.bool()))


def make(masked):
    layer = CoverageAttention(20, masked)
    layer.build((2, 4, 16), (2, 8, 24), (2, 8))
    return layer


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    q = asks()["inputs"]
    share = lambda f: float(ops.convert_to_numpy(f(**q)[1])[1, :, 5:].sum(-1).min())
    return share(wrong()) > 0.1 and share(right()) == 0.0
