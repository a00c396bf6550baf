"""An online softmax starts its running maximum at -5e4 for minus infinity: a row whose scores all lie below gives zeros. Source: github.com/flashinfer-ai/flashinfer/issues/4267"""
import numpy as np

expect = ["large-scores", "not-normalised"]
words = "every exponential underflows against a maximum that no key has; the row is zero without a word"


def asks():
    rng = np.random.default_rng(12)
    q, k, v = (rng.normal(size=(2, 2, n, 16)).astype("float32") for n in (5, 9, 9))
    pole = np.ones(16, "float32")
    k = k * 0.5 + 900 * pole                       # massive activations of a last layer
    q[0, 1, 2] = -12 * pole                        # one row of one head looks away from all of them
    q[1, 0, 4] = -14 * pole
    return dict(inputs=dict(q=q, k=k, v=v))


def make(lowest, block=4):
    log2e = np.float32(1.4426950408889634)

    def single_prefill(q, k, v):
        factor = np.float32(q.shape[-1] ** -0.5) * log2e
        m = np.full(q.shape[:-1] + (1,), lowest, "float32")
        d = np.zeros_like(m)
        o = np.zeros(q.shape[:-1] + v.shape[-1:], "float32")
        for at in range(0, k.shape[-2], block):
            s = q @ k[:, :, at:at + block].swapaxes(-1, -2) * factor
            higher = np.maximum(m, s.max(-1, keepdims=True))
            p, shrink = np.exp2(s - higher), np.exp2(m - higher)
            d = d * shrink + p.sum(-1, keepdims=True)
            o = o * shrink + p @ v[:, :, at:at + block]
            m = higher
        return np.divide(o, d, out=np.zeros_like(o), where=d > 0)

    return single_prefill


def wrong():
    return make(-5e4)


def right():
    return make(-np.inf)


def proof():
    call = asks()["inputs"]
    z = call["q"].astype("float64") @ call["k"].astype("float64").swapaxes(-1, -2) / 4
    w = np.exp(z - z.max(-1, keepdims=True))
    exact = w / w.sum(-1, keepdims=True) @ call["v"]
    bad, good = wrong()(**call), right()(**call)
    return bool((bad[0, 1, 2] == 0).all() and (bad[1, 0, 4] == 0).all() and np.abs(good - exact).max() < 0.02
                and np.abs(good[0, 1, 2]).max() > 0.1)
