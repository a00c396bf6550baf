"""The softmax runs along the first axis of a score matrix, so columns sum to 1. Source: github.com/nerdai/llms-from-scratch-rs/pull/30"""
import numpy as np

expect = ["softmax-over-queries"]
words = "weights of a key sum to 1 over the queries"


def _softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


class SelfAttention:
    """One head over the embeddings (n, c) of one sentence, without a mask."""

    axis = 0

    def __init__(self, c_in=12, c_out=8, seed=0):
        r = np.random.default_rng(seed)
        self.w_query, self.w_key, self.w_value = (r.standard_normal((c_in, c_out)) / c_in**0.5 for _ in range(3))

    def __call__(self, x):
        queries, keys, values = x @ self.w_query, x @ self.w_key, x @ self.w_value
        weights = _softmax(queries @ keys.T / keys.shape[-1] ** 0.5, self.axis)
        return weights @ values


class Mended(SelfAttention):
    axis = -1


def asks():
    return dict(inputs=dict(x=np.random.default_rng(1).standard_normal((7, 12))))


def wrong():
    layer = SelfAttention()
    return lambda x: layer(x)


def right():
    layer = Mended()
    return lambda x: layer(x)


def proof():
    x = asks()["inputs"]["x"]
    return not np.allclose(wrong()(x), right()(x), atol=1e-3)
