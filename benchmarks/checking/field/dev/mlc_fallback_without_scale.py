"""The path for other devices is called with scale 1, the default, where 1/sqrt(d) belongs. Source: github.com/mlc-ai/mlc-llm/pull/3426"""
import numpy as np

expect = ["no-scale"]
words = "scores of the fallback are not scaled"


def _prefill(q, k, v, scale=1.0):
    """Grouped attention in blocks of queries, with the running maximum subtracted; q (b, t, h, d), k and v (b, s, g, d)."""
    b, t, h, d = q.shape
    group = h // k.shape[2]
    out = np.empty((b, t, h, v.shape[-1]), dtype=np.float32)
    for n in range(h):
        kn, vn = k[:, :, n // group], v[:, :, n // group]
        for first in range(0, t, 4):
            rows = slice(first, min(first + 4, t))
            z = np.matmul(q[:, rows, n], kn.swapaxes(1, 2)) * scale
            z = np.exp(z - z.max(axis=2, keepdims=True))
            out[:, rows, n] = np.matmul(z / z.sum(axis=2, keepdims=True), vn)
    return out


def attention(q, k, v):
    """Bidirectional attention of an embedding model."""
    if q.dtype == np.float16:
        return _prefill(*(x.astype(np.float32) for x in (q, k, v)), scale=q.shape[-1] ** -0.5).astype(np.float16)
    return _prefill(q, k, v)


def attention_mended(q, k, v):
    if q.dtype == np.float16:
        return _prefill(*(x.astype(np.float32) for x in (q, k, v)), scale=q.shape[-1] ** -0.5).astype(np.float16)
    return _prefill(q, k, v, scale=q.shape[-1] ** -0.5)


def asks():
    r = np.random.default_rng(1)
    z = lambda heads: r.standard_normal((2, 7, heads, 16)).astype(np.float32)
    return dict(inputs=dict(q=z(4), k=z(2), v=z(2)), layout="b t h d")


def wrong():
    return attention


def right():
    return attention_mended


def proof():
    x = asks()["inputs"]
    return not np.allclose(wrong()(**x), right()(**x), atol=1e-3)
