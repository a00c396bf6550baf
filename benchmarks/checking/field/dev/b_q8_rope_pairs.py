"""A second forward path applies partial RoPE to pairs (2i, 2i+1) where the canonical path pairs (i, half+i). Source: github.com/ohdearquant/lattice/issues/392"""
import numpy as np

expect = ["rotary-pairs", "rotation-other"]
words = "interleaved pairs where the reference forward rotates halves, on the first half of each head (partial rotary)"

C, H = 32, 2
D = C // H
ROT = D // 2


def asks():
    rng = np.random.default_rng(5)
    return dict(inputs=dict(x=rng.standard_normal((2, 7, C)).astype(np.float32)), like=right())


def _weights():
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((C, C)) / np.sqrt(C) * 1.5).astype(np.float32) for _ in range(4)]


def _turn_interleaved(u):
    u = u.copy()
    half = ROT // 2
    pos = np.arange(u.shape[-2], dtype=np.float32)[:, None]
    ang = pos * (100.0 ** (-np.arange(half, dtype=np.float32) / half))
    c, s = np.cos(ang), np.sin(ang)
    for i in range(half):
        a, b = u[..., 2 * i].copy(), u[..., 2 * i + 1].copy()
        u[..., 2 * i] = a * c[:, i] - b * s[:, i]
        u[..., 2 * i + 1] = a * s[:, i] + b * c[:, i]
    return u


def _turn_halves(u):
    u = u.copy()
    half = ROT // 2
    pos = np.arange(u.shape[-2], dtype=np.float32)[:, None]
    ang = pos * (100.0 ** (-np.arange(half, dtype=np.float32) / half))
    c, s = np.cos(ang), np.sin(ang)
    for i in range(half):
        a, b = u[..., i].copy(), u[..., half + i].copy()
        u[..., i] = a * c[:, i] - b * s[:, i]
        u[..., half + i] = a * s[:, i] + b * c[:, i]
    return u


def _make(turn):
    wq, wk, wv, wo = _weights()

    def forward(x):
        b, t, _ = x.shape
        cut = lambda u: u.reshape(b, t, H, D).transpose(0, 2, 1, 3)
        q, k, v = turn(cut(x @ wq)), turn(cut(x @ wk)), cut(x @ wv)
        z = q @ k.swapaxes(-1, -2) / np.sqrt(D)
        z = np.where(np.tril(np.ones((t, t), bool)), z, -np.inf)
        e = np.exp(z - z.max(-1, keepdims=True))
        y = (e / e.sum(-1, keepdims=True)) @ v
        return y.transpose(0, 2, 1, 3).reshape(b, t, C) @ wo
    return forward


def wrong():
    return _make(_turn_interleaved)


def right():
    return _make(_turn_halves)


def proof():
    x = asks()["inputs"]["x"]
    return np.abs(wrong()(x) - right()(x)).max() > 1e-2


if __name__ == "__main__":
    print(proof())
