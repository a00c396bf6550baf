"""Generated attention adds the mask first and caps the sum, so minus infinity becomes minus cap. Source: github.com/emmtrix/emx-onnx-cgen/pull/731"""
import numpy as np
import intently as it

expect = ["softcap-after-mask"]
words = "softcap of masked scores: hidden keys keep weight"


def make(slip, cap=2.0):
    def attention(query, key, value, attn_mask):
        score = np.matmul(query, key.swapaxes(-1, -2)) / np.sqrt(query.shape[-1])
        if slip:
            score = cap * np.tanh((score + attn_mask) / cap)
        else:
            score = cap * np.tanh(score / cap) + attn_mask
        e = np.exp(score - score.max(-1, keepdims=True))
        return np.matmul(e / e.sum(-1, keepdims=True), value)
    return attention


def asks():
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 2, 3, 6, 16)).astype(np.float32)
    mask = np.triu(np.full((6, 6), -np.inf, np.float32), 1)
    return dict(inputs=dict(query=q, key=k, value=v, attn_mask=mask), mask=it.causal())


def wrong(): return make(True)
def right(): return make(False)


def proof():
    a = asks()["inputs"]
    later = dict(a, value=a["value"].copy())
    later["value"][:, :, -1] += 1
    same = [np.allclose(f(**a)[:, :, 0], f(**later)[:, :, 0]) for f in (wrong(), right())]
    return same == [False, True]
