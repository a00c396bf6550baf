"""The local window does not count the query's own token, so each query sees one key more. Source: github.com/microsoft/onnxruntime/pull/25927"""
import numpy as np

expect = ["window-off-by-one"]
words = "with a window of 4 each query sees 5 keys"


def _grouped(q, k, v, first):
    b, h, t, d = q.shape
    g, s = k.shape[1:3]
    out = np.empty((b, h, t, v.shape[-1]), dtype=q.dtype)
    for n in range(h):
        kn, vn = k[:, n // (h // g)], v[:, n // (h // g)]
        scores = (q[:, n] / np.sqrt(d).astype(q.dtype)) @ kn.transpose(0, 2, 1)
        for i in range(t):
            at = s - t + i
            row = scores[:, i]
            row[:, at + 1 :] = -np.inf
            row[:, : max(first(at), 0)] = -np.inf
        e = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, n] = (e / e.sum(-1, keepdims=True)) @ vn
    return out


def group_query_attention_before(query, key, value, local_window_size=4):
    return _grouped(query, key, value, lambda at: at - local_window_size)


def group_query_attention(query, key, value, local_window_size=4):
    return _grouped(query, key, value, lambda at: at - local_window_size + 1)


def asks():
    import intently as it

    r = np.random.default_rng(1)
    z = lambda heads: r.standard_normal((2, heads, 9, 8)).astype(np.float32)
    return dict(inputs=dict(query=z(4), key=z(2), value=z(2)), mask=it.causal() & it.window(3, 0))


def wrong():
    return group_query_attention_before


def right():
    return group_query_attention


def proof():
    x = asks()["inputs"]
    return not np.allclose(wrong()(**x), right()(**x), atol=1e-3)
