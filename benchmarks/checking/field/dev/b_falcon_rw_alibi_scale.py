"""A converted Falcon adds ALiBi to scaled scores, where the checkpoint's model adds it before the scale: biases are sqrt(d) times too large. Source: github.com/NVIDIA/TensorRT-Model-Connect/pull/32"""
import numpy as np

expect = ["bias-scaled"]
words = "scale * q k + alibi for scale * (q k + alibi), the reference's order"


def _builder(fixed, heads=4):
    slopes = 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)

    def attention(query, key, value):
        """(batch, heads, length, d)"""
        d, t, s = query.shape[-1], query.shape[2], key.shape[2]
        alibi = (slopes[:, None, None] * np.arange(s)[None, None]).astype("float32")
        scale = d ** -0.5
        z = query @ key.swapaxes(-1, -2) * scale + alibi * (scale if fixed else 1.0)
        z = np.where(np.arange(s) <= np.arange(s - t, s)[:, None], z, np.float32(-1e9))
        e = np.exp(z - z.max(-1, keepdims=True))
        return (e / e.sum(-1, keepdims=True)) @ value
    return attention


def asks():
    import intently as it
    r = np.random.default_rng(1)
    q, k, v = (r.standard_normal((2, 4, 7, 16)).astype("float32") for _ in "qkv")
    return dict(inputs=dict(query=q, key=k, value=v), mask=it.causal(), like=right())


def wrong():
    return _builder(False)


def right():
    return _builder(True)


def proof():
    a = asks()["inputs"]
    return not np.allclose(wrong()(**a), right()(**a), atol=1e-2)
