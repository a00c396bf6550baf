"""The reference of an Attention operator tiles the key heads (0 1 0 1) where others repeat each (0 0 1 1). Source: github.com/onnx/onnx/pull/7274"""
import numpy as np

expect = ["key-heads-tiled"]
words = "query heads are paired with the wrong key and value heads"


def _softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _op(spread, Q, K, V, scale=None):
    q_heads, kv_heads = Q.shape[1], K.shape[1]
    if q_heads != kv_heads:
        K, V = spread(K, q_heads // kv_heads), spread(V, q_heads // kv_heads)
    root = np.sqrt(scale if scale is not None else 1 / np.sqrt(Q.shape[-1])).astype(Q.dtype)
    logits = np.matmul(Q * root, np.transpose(K, (0, 1, 3, 2)) * root)
    return np.matmul(_softmax(logits), V)


def _tile(a, n):
    return np.tile(a, (1, n, 1, 1))


def _each(a, n):
    b, h, s, d = a.shape
    return np.broadcast_to(a[:, :, None], (b, h, n, s, d)).reshape(b, h * n, s, d)


def _inputs():
    r = np.random.default_rng(5)
    return dict(
        Q=r.normal(size=(2, 4, 5, 16)).astype("float32"),
        K=r.normal(size=(2, 2, 7, 16)).astype("float32"),
        V=r.normal(size=(2, 2, 7, 16)).astype("float32"),
    )


def asks():
    return dict(inputs=_inputs(), like=right())


def wrong():
    def attention(Q, K, V):
        return _op(_tile, Q, K, V)

    return attention


def right():
    def attention(Q, K, V):
        return _op(_each, Q, K, V)

    return attention


def proof():
    d = np.abs(wrong()(**_inputs()) - right()(**_inputs())).max(axis=(0, 2, 3))
    return bool(d[0] < 1e-6 and d[1] > 0.1 and d[2] > 0.1 and d[3] < 1e-6)
