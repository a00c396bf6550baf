"""Dropout leaves every weight in evaluation, but still divides by the share that is kept. Source: github.com/AkiRusProd/numpy-transformer/transformer/layers/base/dropout.py"""
import numpy as np

expect = ['not-normalised', 'dropout-in-eval']
words = 'weights sum to 1 / (1 - p) in evaluation'


class Drop:
    def __init__(self, rate):
        self.rate = rate

    def __call__(self, x, training):
        kept = np.random.binomial(1, 1 - self.rate, x.shape) if training else 1.0
        return x * kept / (1 - self.rate)


class DropMended(Drop):
    def __call__(self, x, training):
        return super().__call__(x, True) if training else x


class NumpyHeads:
    def __init__(self, width, heads, drop):
        r = np.random.default_rng(0)
        self.heads, self.drop = heads, drop
        self.wq, self.wk, self.wv, self.wo = r.uniform(-1, 1, (4, width, width)) / np.sqrt(width)

    def split(self, x):
        b, t, c = x.shape
        return x.reshape(b, t, self.heads, c // self.heads).transpose(0, 2, 1, 3)

    def forward(self, query, key, value, training=False):
        q, k, v = self.split(query @ self.wq), self.split(key @ self.wk), self.split(value @ self.wv)
        s = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
        e = np.exp(s - s.max(-1, keepdims=True))
        a = self.drop(e / e.sum(-1, keepdims=True), training)
        y = (a @ v).transpose(0, 2, 1, 3)
        return y.reshape(*y.shape[:2], -1) @ self.wo


def asks():
    r = np.random.default_rng(1)
    x, y = r.normal(size=(2, 5, 32)), r.normal(size=(2, 7, 32))
    return dict(inputs=dict(query=x, key=y, value=y))


def wrong():
    return NumpyHeads(32, 4, Drop(0.2)).forward


def right():
    return NumpyHeads(32, 4, DropMended(0.2)).forward


def proof():
    x = asks()["inputs"]
    return bool(np.allclose(wrong()(**x) * 0.8, right()(**x)) and not np.allclose(wrong()(**x), right()(**x), atol=1e-2))
