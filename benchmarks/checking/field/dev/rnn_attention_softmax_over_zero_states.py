"""Attention over RNN states that are zero after each text's end: their softmax still takes weight from real words. Source: github.com/ilivans/tf-rnn-attention/issues/11"""
import numpy as np
import intently as it

expect = ["mask-after-softmax", "padding-attended"]
words = "weights of padded steps fall on zero vectors, so the real weights sum to less than 1"

def asks():
    r = np.random.default_rng(0)
    return dict(inputs=dict(outputs=r.normal(size=(3, 8, 20)).astype(np.float32), lengths=np.array([8, 5, 3])), mask=it.padding([8, 5, 3]))

def attention(hides):
    r = np.random.default_rng(6)
    w, b, u = (r.normal(size=s).astype(np.float32) / 2 for s in ((20, 16), (16,), (16,)))

    def pool(outputs, lengths):
        inside = np.arange(outputs.shape[1]) < lengths[:, None]
        states = outputs * inside[..., None]
        z = np.tanh(states @ w + b) @ u
        if hides:
            z = np.where(inside, z, -np.inf)
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p = p / p.sum(axis=1, keepdims=True)
        return (states * p[..., None]).sum(axis=1)

    return pool

def wrong():
    return attention(False)

def right():
    return attention(True)

def proof():
    i = asks()["inputs"]
    a, b = wrong()(**i), right()(**i)
    ratio = a[2] / b[2]
    return bool(np.allclose(a[0], b[0], atol=1e-5) and np.ptp(ratio) < 1e-3 and ratio[0] < .9)
