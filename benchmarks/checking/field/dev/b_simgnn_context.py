"""The attention pooling of a graph similarity network returns its query, the global context, and not the weighted sum of nodes. Source: github.com/pulkit1joshi/SimGNN/pull/2"""
import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import torch
from keras import ops

expect = ["output-lost"]
words = "returns tanh(mean(x W)), the query; the weighted nodes are computed and thrown away"


class GraphPooling(keras.layers.Layer):
    def __init__(self, fixed, width):
        super().__init__()
        self.fixed = fixed
        self.w = self.add_weight(shape=(width, width), initializer=keras.initializers.GlorotNormal(seed=3), name="w")

    def call(self, nodes):
        context = ops.tanh(ops.mean(ops.matmul(nodes, self.w), axis=0, keepdims=True))
        scores = ops.sigmoid(ops.matmul(nodes, ops.transpose(context)))
        pooled = ops.transpose(ops.matmul(ops.transpose(nodes), scores))
        return pooled if self.fixed else context


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(nodes=torch.randn(8, 16)), scale=1.0, like=right())


def wrong():
    return GraphPooling(False, 16)


def right():
    return GraphPooling(True, 16)


def proof():
    a = asks()["inputs"]
    return not torch.allclose(wrong()(**a), right()(**a), atol=1e-3)
