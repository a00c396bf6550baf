"""A fused kernel rotates queries and keys at once and mixes them up: a half of each is made of the other. Source: github.com/hpcaitech/ColossalAI/pull/6429"""
import numpy as np

expect = ["keys-are-queries", "projection-other", "rotation-other", "differs-from-reference"]
words = "the second half of the rotated queries comes from the keys, the first half of the rotated keys from the queries, so both are the same"


def _fused_rotary(q, k, cos, sin, fixed):
    half = q.shape[-1] // 2
    q0, q1, k0, k1 = q[..., :half], q[..., half:], k[..., :half], k[..., half:]
    first_q, second_k = q0 * cos - q1 * sin, k0 * sin + k1 * cos
    if fixed:
        second_q, first_k = q0 * sin + q1 * cos, k0 * cos - k1 * sin
    else:
        second_q, first_k = second_k, first_q
    return np.concatenate((first_q, second_q), -1), np.concatenate((first_k, second_k), -1)


def _attention(fixed):
    def attention(q, k, v):
        """(b, t, h, d)"""
        half = q.shape[-1] // 2
        angle = np.arange(q.shape[1])[:, None] * 10000.0 ** (-np.arange(half) / half)
        cos, sin = (f(angle)[None, :, None].astype("float32") for f in (np.cos, np.sin))
        q, k = _fused_rotary(q, k, cos, sin, fixed)
        z = np.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
        t = z.shape[-1]
        z = np.where(np.tril(np.ones((t, t), bool)), z, np.float32(-np.inf))
        e = np.exp(z - z.max(-1, keepdims=True))
        return np.einsum("bhts,bshd->bthd", e / e.sum(-1, keepdims=True), v)
    return attention


def asks():
    import intently as it
    r = np.random.default_rng(1)
    q, k, v = (r.standard_normal((2, 6, 2, 16)).astype("float32") for _ in "qkv")
    return dict(inputs=dict(q=q, k=k, v=v), mask=it.causal(), like=right())


def wrong():
    return _attention(False)


def right():
    return _attention(True)


def proof():
    a = asks()["inputs"]
    return not np.allclose(wrong()(**a), right()(**a), atol=1e-2)
