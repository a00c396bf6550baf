"""A flash loop over blocks of keys: a first block that is hidden as a whole leaves max = -inf, and exp(-inf - -inf) is NaN. Source: github.com/pytorch/executorch/pull/10466"""
import numpy as np

expect = ["nan-with-keys"]
words = "queries of a sliding window whose first block of keys is all -inf become NaN, although they have keys in later blocks"


def _flash(fixed, block=4):
    def flash(q, k, v, mask):
        """q (b, h, t, d), k, v (b, h, s, d); mask (t, s), 0 or -inf, is added."""
        best = np.full(q.shape[:3] + (1,), -np.inf, "float32")
        total = np.zeros_like(best)
        y = np.zeros(q.shape[:3] + v.shape[-1:], "float32")
        with np.errstate(invalid="ignore"):
            for at in range(0, k.shape[2], block):
                cols = slice(at, at + block)
                z = q @ k[:, :, cols].swapaxes(-1, -2) * q.shape[-1] ** -0.5 + mask[:, cols]
                top = np.maximum(best, z.max(-1, keepdims=True))
                ground = np.where(np.isneginf(top), 0, top) if fixed else top
                p = np.exp(z - ground)
                keep = np.exp(best - ground)
                total = total * keep + p.sum(-1, keepdims=True)
                y = y * keep + p @ v[:, :, cols]
                best = top
            return (y / total).astype("float32")
    return flash


def asks():
    import intently as it
    r = np.random.default_rng(1)
    q, k, v = (r.standard_normal((2, 2, 9, 16)).astype("float32") for _ in "qkv")
    i, j = np.arange(9)[:, None], np.arange(9)
    mask = np.where((j <= i) & (i - j < 3), 0, -np.inf).astype("float32")
    return dict(inputs=dict(q=q, k=k, v=v, mask=mask), mask=it.window(2, 0))


def wrong():
    return _flash(False)


def right():
    return _flash(True)


def proof():
    a = asks()["inputs"]
    z = a["q"] @ a["k"].swapaxes(-1, -2) / 4 + a["mask"]
    w = np.exp(z - z.max(-1, keepdims=True))
    plain = w / w.sum(-1, keepdims=True) @ a["v"]
    return np.isnan(wrong()(**a)).any() and np.allclose(right()(**a), plain, atol=1e-5)
