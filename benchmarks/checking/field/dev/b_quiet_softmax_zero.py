"""Quiet softmax subtracts the largest score from all scores and not from the zero beside them: + 1 where exp(-max) belongs. Source: github.com/tracel-ai/burn/pull/4121"""
import numpy as np

expect = ["sinks-other", "not-normalised"]
words = "the share of the additional zero changes with the largest score: exp(z - m) / (1 + sum exp(z - m))"


def _quiet(z, fixed):
    m = z.max(-1, keepdims=True)
    if fixed:
        m = np.maximum(m, 0)
    e = np.exp(z - m)
    return e / (e.sum(-1, keepdims=True) + (np.exp(-m) if fixed else 1.0))


def _attention(fixed):
    def attention(query, key, value):
        """(b, h, t, d)"""
        z = query @ key.swapaxes(-1, -2) / np.float32(np.sqrt(query.shape[-1]))
        return _quiet(z, fixed) @ value
    return attention


def asks():
    r = np.random.default_rng(1)
    q = r.standard_normal((2, 2, 5, 16)).astype("float32")
    k, v = (r.standard_normal((2, 2, 7, 16)).astype("float32") for _ in "kv")
    return dict(inputs=dict(query=q, key=k, value=v), like=right())


def wrong():
    return _attention(False)


def right():
    return _attention(True)


def proof():
    z = np.array([[3.0, 1.0, 2.0]])
    plain = np.exp(z) / (1 + np.exp(z).sum())
    return np.allclose(_quiet(z, True), plain) and not np.allclose(_quiet(z, False), plain, atol=1e-2)
