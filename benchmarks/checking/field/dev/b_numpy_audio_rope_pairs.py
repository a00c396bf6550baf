"""A ported audio transformer turns neighbouring numbers while the checkpoint was stored for halves. Source: github.com/huggingface/candle/pull/3949"""
import numpy as np
import intently as it

expect = ["rotary-pairs", "differs-from-reference"]
words = "pairs (0, 1), (2, 3) are rotated where the reference rotates (0, d/2), (1, d/2 + 1)"
WIDE, HEADS = 32, 2


def turn(x, pairs):
    t, d = x.shape[-2:]
    angle = np.arange(t)[:, None] * 10000.0 ** (-np.arange(d // 2) * 2 / d)
    c, s = np.cos(angle), np.sin(angle)
    if pairs:
        a, b = x[..., ::2], x[..., 1::2]
        return np.stack((a * c - b * s, a * s + b * c), -1).reshape(x.shape)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate((a * c - b * s, a * s + b * c), -1)


def layer(pairs):
    g = np.random.default_rng(3)
    wq, wk, wv, wo = (g.standard_normal((WIDE, WIDE)) / np.sqrt(WIDE) for _ in range(4))

    def split(x):
        return x.reshape(x.shape[0], x.shape[1], HEADS, -1).transpose(0, 2, 1, 3)

    def attention(x):
        b, t, _ = x.shape
        q, k, v = turn(split(x @ wq), pairs), turn(split(x @ wk), pairs), split(x @ wv)
        z = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
        z = np.where(np.tri(t, dtype=bool), z, -np.inf)
        p = np.exp(z - z.max(-1, keepdims=True))
        y = (p / p.sum(-1, keepdims=True)) @ v
        return y.transpose(0, 2, 1, 3).reshape(b, t, WIDE) @ wo

    return attention


def asks():
    g = np.random.default_rng(0)
    return dict(inputs=dict(x=g.standard_normal((2, 8, WIDE))), mask=it.causal(), like=right())


def wrong():
    return layer(True)


def right():
    return layer(False)


def proof():
    i = asks()["inputs"]
    gap = np.abs(wrong()(**i) - right()(**i)).max((0, 2))
    return bool(gap[0] < 1e-12 and gap[4:].max() > 1e-2)
