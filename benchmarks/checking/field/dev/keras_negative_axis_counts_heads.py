"""A negative attention axis is counted on the projected tensor, which has an axis of heads more: the layer attends over heads. Source: github.com/keras-team/keras/issues/21714"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np
import torch
from keras import ops

expect = ["softmax-over-heads"]
words = "heads of one position attend to each other; no position sees another one"


def asks():
    return dict(inputs=dict(x=torch.randn(2, 6, 24)))


class AlongAxis(keras.layers.Layer):
    """Attention along any axis of its input, the features excepted."""

    def __init__(self, heads, width, axis, count_before_projection, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.width, self.axis = heads, width, axis
        self.count_before_projection = count_before_projection

    def build(self, shape):
        rank = len(shape)
        names = "abcdefgh"[: rank - 1]
        into = f"{names}x,xhw->{names}hw"
        projected = tuple(shape[1:-1]) + (self.heads, self.width)
        self.to_q, self.to_k, self.to_v = (
            keras.layers.EinsumDense(into, output_shape=projected, bias_axes="hw") for _ in range(3))
        self.back = keras.layers.EinsumDense(f"{names}hw,hwx->{names}x",
                                             output_shape=tuple(shape[1:-1]) + (shape[-1],), bias_axes="x")
        for layer in (self.to_q, self.to_k, self.to_v):
            layer.build(shape)
        self.back.build((shape[0],) + projected)

        axes_of_q = list("ijklmnop"[: rank + 1])
        counted = rank if self.count_before_projection else rank + 1
        along = self.axis % counted
        axes_of_k = list(axes_of_q)
        axes_of_k[along] = "z"
        rest = [n for at, n in enumerate(axes_of_q[:-1]) if at != along]
        product = rest + [axes_of_q[along], "z"]
        q, k, s = "".join(axes_of_q), "".join(axes_of_k), "".join(product)
        self.for_scores, self.for_sum = f"{q},{k}->{s}", f"{s},{k}->{q}"

    def call(self, x):
        q = self.to_q(x) / self.width ** 0.5
        scores = ops.einsum(self.for_scores, q, self.to_k(x))
        weights = ops.softmax(scores, axis=-1)
        return self.back(ops.einsum(self.for_sum, weights, self.to_v(x)))


def make(count_before_projection):
    keras.utils.set_random_seed(3)
    layer = AlongAxis(heads=3, width=8, axis=-2, count_before_projection=count_before_projection)
    layer.build((None, 6, 24))
    return layer


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    x = torch.randn(2, 6, 24)
    a, b = wrong(), right()
    b.set_weights(a.get_weights())
    moved = x.clone()
    moved[:, 3] += 1
    still = np.abs(ops.convert_to_numpy(a(x) - a(moved)))[:, [0, 1, 2, 4, 5]].max()     # no other row notices
    apart = np.abs(ops.convert_to_numpy(a(x) - b(x))).max()
    return bool(still < 1e-6 and apart > 1e-2)
