"""A book's multi-head attention projects query, key and value for each head and then scores and sums the raw target and source. Source: github.com/fchollet/deep-learning-with-python-notebooks/issues/267"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
from keras import layers, ops
import numpy as np
import torch

expect = ["values-are-keys", "keys-are-queries", "projection-other"]
words = "the projections of the heads have no effect: raw query and key are scored, and the raw key is summed"


class PerHeadAttention(layers.Layer):
    def __init__(self, head_dim=8, num_heads=3, **kwargs):
        super().__init__(**kwargs)
        self.head_dim, self.num_heads = head_dim, num_heads
        self.query_dense = [layers.Dense(head_dim) for _ in range(num_heads)]
        self.key_dense = [layers.Dense(head_dim) for _ in range(num_heads)]
        self.value_dense = [layers.Dense(head_dim) for _ in range(num_heads)]
        self.output_dense = layers.Dense(head_dim * num_heads)

    def one_head(self, i, query, key, value):
        q, k, v = self.query_dense[i](query), self.key_dense[i](key), self.value_dense[i](value)
        scores = ops.softmax(ops.einsum("btd,bsd->bts", q, k) / self.head_dim ** 0.5, axis=-1)
        return ops.einsum("bts,bsd->btd", scores, v)

    def call(self, query, key, value):
        return self.output_dense(ops.concatenate([self.one_head(i, query, key, value) for i in range(self.num_heads)], axis=-1))


class Printed(PerHeadAttention):
    def one_head(self, i, query, key, value):
        target, source = query, key
        query, key, value = self.query_dense[i](query), self.key_dense[i](key), self.value_dense[i](value)
        scores = ops.softmax(ops.einsum("btd,bsd->bts", target, source) / self.head_dim ** 0.5, axis=-1)
        return ops.einsum("bts,bsd->btd", scores, source)


def asks():
    source = torch.randn(2, 7, 8)
    return dict(inputs=dict(query=torch.randn(2, 5, 8), key=source, value=source))


def _make(cls):
    keras.utils.set_random_seed(0)
    layer = cls()
    x = np.zeros((1, 2, 8), "float32")
    layer(x, x, x)
    return layer


def wrong():
    return _make(Printed)


def right():
    return _make(PerHeadAttention)


def proof():
    x = asks()["inputs"]
    bad, good = wrong(), right()
    before = bad(**x)
    bad.value_dense[0].kernel.assign(bad.value_dense[0].kernel * 2)
    return bool(ops.all(before == bad(**x))) and float(ops.max(ops.abs(before - good(**x)))) > 1e-3
