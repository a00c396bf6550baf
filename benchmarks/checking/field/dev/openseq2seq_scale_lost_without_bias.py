"""A scaled product loses its scale where no bias is given: the else branch takes the raw logits. Source: github.com/NVIDIA/OpenSeq2Seq/pull/76"""
import keras
import numpy as np
from keras import ops

expect = ["no-scale", "setting-matters", "paths-differ"]
words = "with a bias the product is divided by sqrt(d), without one it is not"


class ScaledProduct(keras.layers.Layer):
    def __init__(self, heads, fall_back, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.fall_back = heads, fall_back

    def build(self, query_shape, *others):
        d = query_shape[-1]
        self.maps = [self.add_weight(shape=(d, d), initializer=keras.initializers.GlorotNormal(seed=s), name=f"map{s}") for s in range(4)]
        self.built = True

    def split(self, u, w):
        u = ops.matmul(u, w)
        return ops.transpose(ops.reshape(u, (u.shape[0], u.shape[1], self.heads, -1)), (0, 2, 1, 3))

    def call(self, query, memory, bias=None):
        q, k, v = self.split(query, self.maps[0]), self.split(memory, self.maps[1]), self.split(memory, self.maps[2])
        logits = ops.matmul(q, ops.swapaxes(k, -1, -2))
        scaled = logits / q.shape[-1] ** 0.5
        if bias is not None:
            scaled = scaled + bias
        elif self.fall_back:
            scaled = logits
        y = ops.transpose(ops.matmul(ops.softmax(scaled), v), (0, 2, 1, 3))
        return ops.matmul(ops.reshape(y, query.shape), self.maps[3])


def asks():
    import torch
    torch.manual_seed(1)
    return dict(inputs=dict(query=torch.randn(2, 5, 32), memory=torch.randn(2, 8, 32)))


def make(fall_back):
    layer = ScaledProduct(4, fall_back)
    layer.build((2, 5, 32), (2, 8, 32))
    return layer


def wrong():
    return make(True)


def right():
    return make(False)


def proof():
    q = asks()["inputs"]
    gap = lambda f: float(np.abs(ops.convert_to_numpy(f(**q)) - ops.convert_to_numpy(f(**q, bias=ops.zeros((1, 1, 1, 8))))).max())
    return gap(wrong()) > 1e-2 and gap(right()) < 1e-5
