"""A Keras layer of additive self-attention hides a key only from queries that are padding themselves, so real words attend to padding. Source: github.com/CyberZHG/keras-self-attention/issues/41"""
import keras
import numpy as np
from keras import ops
import intently as it

expect = ["padding-attended", "mask-other"]
words = "the penalty is (1 - m_i)(1 - m_j): it lies where both the query and the key are padding"


class AdditiveSelfAttention(keras.layers.Layer):
    def __init__(self, units, keys_only, **kwargs):
        super().__init__(**kwargs)
        self.units, self.keys_only, self.supports_masking = units, keys_only, True

    def build(self, input_shape):
        d = input_shape[-1]
        new = lambda shape, seed, name: self.add_weight(shape=shape, initializer=keras.initializers.RandomNormal(stddev=0.5, seed=seed), name=name)
        self.w_query, self.w_key = new((d, self.units), 1, "w_query"), new((d, self.units), 2, "w_key")
        self.shift, self.v, self.offset = new((self.units,), 3, "shift"), new((self.units, 1), 4, "v"), new((1,), 5, "offset")
        self.built = True

    def call(self, inputs, mask=None):
        left = ops.expand_dims(ops.matmul(inputs, self.w_query), 2)
        above = ops.expand_dims(ops.matmul(inputs, self.w_key), 1)
        e = ops.squeeze(ops.matmul(ops.tanh(left + above + self.shift), self.v), -1) + self.offset
        if mask is not None:
            empty = 1.0 - ops.cast(mask, "float32")
            penalty = empty[:, None, :] if self.keys_only else empty[:, :, None] * empty[:, None, :]
            e = e - 10000.0 * penalty
        e = ops.exp(e - ops.max(e, axis=-1, keepdims=True))
        a = e / ops.sum(e, axis=-1, keepdims=True)
        return ops.matmul(a, inputs)


def asks():
    import torch
    torch.manual_seed(0)
    mask = torch.arange(7)[None] < torch.tensor([4, 7])[:, None]
    return dict(inputs=dict(inputs=torch.randn(2, 7, 16), mask=mask), mask=it.padding(mask))


def make(keys_only):
    layer = AdditiveSelfAttention(12, keys_only)
    layer.build((2, 7, 16))
    return layer


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    q = asks()["inputs"]
    other = q["inputs"].clone()
    other[0, 4:] = 3.0
    moves = lambda f: float(np.abs(ops.convert_to_numpy(f(q["inputs"], mask=q["mask"]))[0, :4] - ops.convert_to_numpy(f(other, mask=q["mask"]))[0, :4]).max())
    return moves(wrong()) > 1e-2 and moves(right()) < 1e-5
