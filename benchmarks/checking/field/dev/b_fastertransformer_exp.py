"""The softmax exponentiates raw scores without subtracting the largest one, and a trained model gives NaN. Source: github.com/NVIDIA/FasterTransformer/issues/43"""
import numpy as np
import intently as it

expect = ["large-scores", "nan-with-keys"]
words = "exp of large scores is infinite, and infinity by infinity is NaN"


def softmax_kernel(z, protect):
    if protect:
        z = z - z.max(axis=-1, keepdims=True)
    e = np.exp(z)
    return e / e.sum(axis=-1, keepdims=True)


def make(protect):
    def attention(q, k, v, mask):
        z = np.einsum("bhtd,bhsd->bhts", q, k) * np.float32(q.shape[-1] ** -0.5)
        z = np.where(mask[:, None, None, :] > 0, z, np.finfo(z.dtype).min)
        with np.errstate(all="ignore"):
            return softmax_kernel(z, protect) @ v

    return attention


LENGTHS = [6, 4]


def asks():
    g = np.random.default_rng(8)
    x = lambda c: (c * g.standard_normal((2, 4, 6, 16))).astype("float32")
    mask = (np.arange(6)[None] < np.array(LENGTHS)[:, None]).astype("float32")
    return dict(inputs=dict(q=x(12), k=x(6), v=x(1), mask=mask), mask=it.padding(LENGTHS))


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    i = asks()["inputs"]
    return bool(np.isnan(wrong()(**i)).any() and np.isfinite(right()(**i)).all())
