"""Multi-head attention of a BERT example multiplies the raw products by the values: the softmax is commented out and no scale is there. Source: github.com/flexflow/flexflow-train/issues/467"""
import numpy as np

expect = ["not-normalised", "no-scale"]
words = "weights are q.k themselves: neither divided by sqrt(d) nor passed through a softmax"


def dense(rng, n, m):
    kernel, bias = rng.normal(size=(n, m)).astype(np.float32) / n ** 0.5, rng.normal(size=m).astype(np.float32) * 0.1
    return lambda u: u @ kernel + bias


def bert_attention(complete, hidden=32, heads=4):
    rng = np.random.default_rng(17)
    to_q, to_k, to_v, to_out = (dense(rng, hidden, hidden) for _ in range(4))
    kdim = hidden // heads

    def multihead_attention(x):
        batch, length, _ = x.shape
        q = to_q(x).reshape(batch, length, heads, kdim).transpose(0, 2, 1, 3)
        k = to_k(x).reshape(batch, length, heads, kdim).transpose(0, 2, 3, 1)
        v = to_v(x).reshape(batch, length, heads, kdim).transpose(0, 2, 1, 3)
        z = np.matmul(q, k)
        if complete:
            z = z / np.sqrt(kdim)
            z = np.exp(z - z.max(-1, keepdims=True))
            z = z / z.sum(-1, keepdims=True)
        mixed = np.matmul(z, v).transpose(0, 2, 1, 3).reshape(batch, length, hidden)
        return to_out(mixed)

    return multihead_attention


def asks():
    return dict(inputs=dict(x=np.random.default_rng(1).normal(size=(2, 7, 32)).astype(np.float32)))


def wrong():
    return bert_attention(False)


def right():
    return bert_attention(True)


def proof():
    x = asks()["inputs"]["x"]
    return np.abs(wrong()(x) - right()(x)).max() > 0.1
