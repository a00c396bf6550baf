"""A graph attention layer is fed the bare adjacency matrix, whose diagonal is zero, so a node never attends to itself. Source: github.com/danielegrattarola/keras-gat/issues/11"""
import keras
import numpy as np
from keras import ops
import intently as it

expect = ["mask-other"]
words = "the neighbourhood of a node holds the node itself (equation 3 of the paper), but the diagonal is masked"


class NeighbourAttention(keras.layers.Layer):
    def __init__(self, channels, heads, loops, **kwargs):
        super().__init__(**kwargs)
        self.channels, self.heads, self.loops = channels, heads, loops

    def build(self, input_shape):
        width = input_shape[0][-1]
        init = lambda i: keras.initializers.GlorotUniform(seed=i)
        self.maps = [self.add_weight(shape=(width, self.channels), initializer=init(3 * h), name=f"map{h}") for h in range(self.heads)]
        self.own = [self.add_weight(shape=(self.channels, 1), initializer=init(3 * h + 1), name=f"own{h}") for h in range(self.heads)]
        self.other = [self.add_weight(shape=(self.channels, 1), initializer=init(3 * h + 2), name=f"other{h}") for h in range(self.heads)]
        self.built = True

    def call(self, inputs):
        nodes, adjacency = inputs
        if self.loops:
            adjacency = ops.maximum(adjacency, ops.eye(adjacency.shape[0]))
        rows = []
        for m, own, other in zip(self.maps, self.own, self.other):
            h = ops.matmul(nodes, m)
            e = ops.leaky_relu(ops.matmul(h, own) + ops.transpose(ops.matmul(h, other)), negative_slope=0.2)
            e = e + -10e9 * (1.0 - adjacency)
            rows.append(ops.matmul(ops.softmax(e, axis=-1), h))
        return ops.elu(ops.concatenate(rows, axis=-1))


def graph():
    n = 7
    a = np.zeros((n, n), np.float32)
    for i, j in [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 5), (4, 6), (5, 6), (1, 6)]:
        a[i, j] = a[j, i] = 1
    return a


def asks():
    import torch
    a = graph()
    x = np.random.default_rng(2).normal(size=(7, 16)).astype(np.float32)
    return dict(inputs=dict(inputs=[torch.tensor(x), torch.tensor(a)]), mask=torch.tensor(a + np.eye(7) > 0))


def make(loops):
    layer = NeighbourAttention(8, 2, loops)
    layer.build([(7, 16), (7, 7)])
    return layer


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    x, a = asks()["inputs"]["inputs"]
    y, z = ops.convert_to_numpy(wrong()([x, a])), ops.convert_to_numpy(right()([x, a]))
    return np.abs(y - z).max() > 1e-2
