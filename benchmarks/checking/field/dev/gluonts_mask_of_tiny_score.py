"""Hidden scores are set to 1e-9 in place of -1e9: a key of the future has the score zero. Source: github.com/awslabs/gluonts/pull/1401"""
import numpy as np
import intently as it

expect = ["mask-too-weak", "mask-other", "mask-missing"]
words = "masked scores become 0, so later keys keep weight, and more than keys with negative scores"

def asks():
    r = np.random.default_rng(0)
    q, k, v = (r.normal(size=(2, 4, 7, 8)).astype(np.float32) for _ in range(3))
    return dict(inputs=dict(q=q, k=k, v=v), mask=it.causal())

def interpretable(hidden):
    def attend(q, k, v):
        z = np.einsum("bhtd,bhsd->bhts", q, k) / np.sqrt(q.shape[-1])
        past = np.tril(np.ones(z.shape[-2:], dtype=bool))
        z = np.where(past, z, np.float32(hidden))
        z = z - z.max(-1, keepdims=True)
        p = np.exp(z)
        p /= p.sum(-1, keepdims=True)
        return np.einsum("bhts,bhsd->bhtd", p, v)

    return attend

def wrong():
    return interpretable(1e-9)

def right():
    return interpretable(-1e9)

def proof():
    i = asks()["inputs"]
    a, b = wrong()(**i), right()(**i)
    return bool(np.abs(a - b).max() > .1 and np.allclose(b[:, :, 0], i["v"][:, :, 0], atol=1e-5))
