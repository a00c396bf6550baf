"""The window mask keeps one key more than the window has (<= for <). Source: github.com/ml-explore/mlx-lm/pull/390"""
import numpy as np
import intently as it

expect = ["window-off-by-one"]
words = "a window of n keys lets a query see n keys before its own, n + 1 in all"

WINDOW = 3


def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def make(inside):
    def create_causal_mask(n, offset, window):
        right_ = np.arange(offset + n)
        left = np.arange(offset, offset + n)[:, None]
        return (left >= right_[None]) & inside(left, right_[None] + window)

    def attention(queries, keys, values):
        t, s, d = queries.shape[2], keys.shape[2], queries.shape[3]
        mask = create_causal_mask(t, s - t, WINDOW)
        scores = (queries * d ** -0.5) @ keys.swapaxes(-1, -2)
        scores = np.where(mask, scores, np.finfo(scores.dtype).min)
        return softmax(scores) @ values

    return attention


def asks():
    g = np.random.default_rng(7)
    x = lambda n: g.standard_normal((2, 4, n, 8)).astype("float32")
    return dict(inputs=dict(queries=x(6), keys=x(8), values=x(8)), mask=it.window(WINDOW - 1, 0))


def wrong():
    return make(np.less_equal)


def right():
    return make(np.less)


def proof():
    i = asks()["inputs"]
    j = dict(i, values=i["values"].copy())
    j["values"][:, :, 4] += 9                       # three back of the last query, at position 7
    sees = lambda f: np.abs(f(**i) - f(**j))[:, :, -1].max()
    return bool(sees(wrong()) > 1e-3 and sees(right()) < 1e-6)
