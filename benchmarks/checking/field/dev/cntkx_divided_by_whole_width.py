"""Scores are divided by d, the root was forgotten. Source: github.com/delzac/cntkx/issues/10"""
import numpy as np
import intently as it

expect = ["scale-one-over-d"]
words = "q k / d in place of q k / sqrt(d)"


def make(slip):
    def scaled_dot_product_attention(query, key, value, obey_order=True):
        d = query.shape[-1]
        scores = np.einsum("btd,bsd->bts", query, key) / (d if slip else np.sqrt(d))
        if obey_order:
            order = np.tri(scores.shape[1], scores.shape[2], dtype=bool)
            scores = np.where(order, scores, -1e10)
        scores -= scores.max(2, keepdims=True)
        p = np.exp(scores)
        p /= p.sum(2, keepdims=True)
        return np.einsum("bts,bsd->btd", p, value)
    return scaled_dot_product_attention


def asks():
    rng = np.random.default_rng(3)
    q, k, v = rng.standard_normal((3, 2, 6, 24))
    return dict(inputs=dict(query=q, key=k, value=v), mask=it.causal())


def wrong(): return make(True)
def right(): return make(False)


def proof():
    a = asks()["inputs"]
    b = dict(a, query=a["query"] * np.sqrt(24))
    return np.allclose(wrong()(**b), right()(**a)) and not np.allclose(wrong()(**a), right()(**a), atol=1e-2)
