"""The attention layer of a C++ framework flattens heads, queries and keys before its softmax, so a whole sample sums to 1. Source: github.com/nntrainer/nntrainer/pull/1602"""
import numpy as np

expect = ["not-normalised", "softmax-over-queries", "softmax-over-heads"]
words = "one softmax over the last three axes (heads, queries, keys) where it belongs over keys"


def _softmax(z, axes):
    e = np.exp(z - z.max(axis=axes, keepdims=True))
    return e / e.sum(axis=axes, keepdims=True)


def _attend(axes):
    def attend(query, key, value):
        """(batch, heads, length, d), dot-product scores as in Keras' Attention(use_scale=False)."""
        z = query @ key.swapaxes(-1, -2)
        return _softmax(z, axes) @ value
    return attend


def asks():
    r = np.random.default_rng(1)
    q = r.standard_normal((2, 2, 5, 16)).astype("float32") / 4
    k, v = (r.standard_normal((2, 2, 7, 16)).astype("float32") for _ in "kv")
    return dict(inputs=dict(query=q, key=k, value=v), scale=1.0)


def wrong():
    return _attend((-3, -2, -1))


def right():
    return _attend((-1,))


def proof():
    a = dict(asks()["inputs"], value=np.ones((2, 2, 7, 16), "float32"))
    return not np.allclose(wrong()(**a), 1) and np.allclose(right()(**a), 1, atol=1e-5)
