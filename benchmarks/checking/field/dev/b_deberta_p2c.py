"""Disentangled attention: the position-to-content term is gathered with the negated distance, right before a transpose that is not made here. Source: github.com/nntrainer/nntrainer/pull/3982"""
import numpy as np

expect = ["bias-other", "scores-other", "differs-from-reference"]
words = "the position query is looked up at k - q where, without the reference's transpose, it has to be q - k"


def _softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _encoder(fixed, width=32, heads=2, span=4):
    r = np.random.default_rng(0)
    d = width // heads
    wq, wk, wv = (r.standard_normal((width, width)).astype("float32") * width ** -0.5 for _ in range(3))
    table = r.standard_normal((2 * span, width)).astype("float32")

    def cut(x):
        return x.reshape(*x.shape[:-1], heads, d).swapaxes(-2, -3)

    def attention(x):
        q, k, v = cut(x @ wq), cut(x @ wk), cut(x @ wv)
        pos_k, pos_q = cut(table @ wk), cut(table @ wq)
        t = x.shape[1]
        distance = np.arange(t)[:, None] - np.arange(t)[None]
        c2p_at = np.clip(distance + span, 0, 2 * span - 1)
        p2c_at = c2p_at if fixed else np.clip(-distance + span, 0, 2 * span - 1)
        scale = (3 * d) ** -0.5
        z = np.empty((len(x), heads, t, t), "float32")
        for i in range(t):
            for j in range(t):
                content = (q[:, :, i] * k[:, :, j]).sum(-1)
                c2p = (q[:, :, i] * pos_k[:, c2p_at[i, j]]).sum(-1)
                p2c = (k[:, :, j] * pos_q[:, p2c_at[i, j]]).sum(-1)
                z[:, :, i, j] = (content + c2p + p2c) * scale
        y = _softmax(z) @ v
        return y.swapaxes(1, 2).reshape(x.shape)
    return attention


def asks():
    x = np.random.default_rng(1).standard_normal((2, 6, 32)).astype("float32")
    return dict(inputs=dict(x=x), scale=(3 * 16) ** -0.5, like=right())


def wrong():
    return _encoder(False)


def right():
    return _encoder(True)


def proof():
    a = asks()["inputs"]
    return not np.allclose(wrong()(**a), right()(**a), atol=1e-2)
