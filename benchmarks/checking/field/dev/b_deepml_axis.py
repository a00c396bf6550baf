"""A NumPy self-attention exercise normalises the exponentials down the columns, over queries, so that rows do not sum to 1. Source: github.com/Open-Deep-ML/DML-OpenProblem/issues/424"""
import numpy as np

expect = ["softmax-over-queries"]
words = "softmax is taken over axis 0 of the (queries, keys) scores (the reporter's expected numbers have columns that sum to 1)"


def asks():
    rng = np.random.default_rng(3)
    return dict(inputs=dict(Q=rng.standard_normal((6, 16)), K=rng.standard_normal((6, 16)), V=rng.standard_normal((6, 16))))


def _make(axis):
    def self_attention(Q, K, V):
        logits = np.dot(Q, K.T) / np.sqrt(K.shape[1])
        powers = np.exp(logits - logits.max(axis=axis, keepdims=True))
        return np.dot(powers / powers.sum(axis=axis, keepdims=True), V)
    return self_attention


def wrong():
    return _make(0)


def right():
    return _make(1)


def proof():
    a = asks()["inputs"]
    return not np.allclose(wrong()(**a), right()(**a), atol=1e-3)


if __name__ == "__main__":
    print(proof())
