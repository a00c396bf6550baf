"""The dense mask of a graph attention layer is -1e10 (1 - a): with weighted edges every a above 1 attracts all weight and every a below 1 is cut off. Source: github.com/danielegrattarola/spektral/pull/299"""
import keras
import numpy as np
from keras import ops

expect = ["mask-other", "bias-other"]
words = "the mask is right for 0 and 1 only; an edge of weight 2 adds +1e10, one of weight 0.5 -5e9"


class DenseGAT(keras.layers.Layer):
    def __init__(self, channels, attn_heads, by_sign, **kwargs):
        super().__init__(**kwargs)
        self.channels, self.attn_heads, self.by_sign = channels, attn_heads, by_sign

    def build(self, input_shape):
        f = input_shape[0][-1]
        glorot = [keras.initializers.GlorotUniform(seed=s) for s in (5, 6, 7)]
        self.kernel = self.add_weight(shape=(f, self.attn_heads, self.channels), initializer=glorot[0], name="kernel")
        self.a_self = self.add_weight(shape=(self.channels, self.attn_heads), initializer=glorot[1], name="a_self")
        self.a_neigh = self.add_weight(shape=(self.channels, self.attn_heads), initializer=glorot[2], name="a_neigh")
        self.built = True

    def call(self, inputs):
        x, a = inputs
        eye = ops.eye(a.shape[-1])
        a = a * (1.0 - eye) + eye
        h = ops.einsum("bnf,fhc->bnhc", x, self.kernel)
        coef = ops.einsum("bnhc,ch->bhn", h, self.a_self)[..., :, None] + ops.einsum("bnhc,ch->bhn", h, self.a_neigh)[..., None, :]
        coef = ops.leaky_relu(coef, negative_slope=0.2)
        hidden = ops.where(a == 0.0, -10e9, 0.0) if self.by_sign else -10e9 * (1.0 - a)
        coef = ops.softmax(coef + hidden[:, None], axis=-1)
        out = ops.einsum("bhnm,bmhc->bnhc", coef, h)
        return ops.reshape(out, (out.shape[0], out.shape[1], self.attn_heads * self.channels))


def asks():
    import torch
    g = np.random.default_rng(9)
    a = np.triu((g.random((2, 6, 6)) < 0.5) * g.uniform(0.4, 2.5, size=(2, 6, 6)), 1)
    a = (a + a.swapaxes(1, 2)).astype(np.float32)
    x = g.normal(size=(2, 6, 16)).astype(np.float32)
    return dict(inputs=dict(inputs=[torch.tensor(x), torch.tensor(a)]), mask=torch.tensor(a + np.eye(6) > 0)[:, None])


def make(by_sign):
    layer = DenseGAT(8, 2, by_sign)
    layer.build([(2, 6, 16), (2, 6, 6)])
    return layer


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    x, a = asks()["inputs"]["inputs"]
    run = lambda f, e: ops.convert_to_numpy(f([x, e]))
    same = np.abs(run(wrong(), (a > 0).float()) - run(right(), (a > 0).float())).max()
    return same < 1e-5 and np.abs(run(wrong(), a) - run(right(), a)).max() > 1e-2
