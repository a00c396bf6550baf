"""Block-wise causal attention: how many key blocks a block of queries needs is taken from its first query, not its last. Source: github.com/ROCm/rocMLIR/pull/2165"""
import intently as it
import numpy as np

expect = ["mask-other"]
words = "later queries of a block never see the keys of the last blocks they need, their own key among them"

ROWS, COLUMNS = 4, 2


def asks():
    rng = np.random.default_rng(8)
    draw = lambda: rng.normal(size=(2, 2, 8, 16)).astype("float32")
    return dict(inputs=dict(q=draw(), k=draw(), v=draw()), mask=it.causal())


def make(last_row_of):
    def blockwise(q, k, v):
        t, s, scale = q.shape[-2], k.shape[-2], q.shape[-1] ** -0.5
        y = np.zeros(q.shape[:-1] + v.shape[-1:], q.dtype)
        for at in range(0, t, ROWS):
            rows = np.arange(at, min(at + ROWS, t))
            top = np.full(q.shape[:2] + (len(rows), 1), -np.inf)
            total = np.zeros_like(top)
            held = np.zeros(q.shape[:2] + (len(rows), v.shape[-1]))
            end = min(last_row_of(at, len(rows)) // COLUMNS + 1, -(-s // COLUMNS))
            for block in range(end):
                columns = np.arange(block * COLUMNS, min((block + 1) * COLUMNS, s))
                z = q[:, :, rows] @ k[:, :, columns].swapaxes(-1, -2) * scale
                z = np.where(columns[None] > rows[:, None], -np.inf, z)
                new = np.maximum(top, z.max(-1, keepdims=True))
                e, keep = np.exp(z - new), np.exp(top - new)
                total = total * keep + e.sum(-1, keepdims=True)
                held = held * keep + e @ v[:, :, columns]
                top = new
            y[:, :, rows] = held / total
        return y

    return blockwise


def wrong():
    return make(lambda first, n: first)


def right():
    return make(lambda first, n: first + n - 1)


def proof():
    call = asks()["inputs"]
    z = call["q"] @ call["k"].swapaxes(-1, -2) / 4
    z = np.where(np.tri(8, dtype=bool), z, -np.inf)
    w = np.exp(z - z.max(-1, keepdims=True))
    exact = w / w.sum(-1, keepdims=True) @ call["v"]
    off = np.abs(wrong()(**call) - exact).max((0, 1, 3))
    return bool(np.abs(right()(**call) - exact).max() < 1e-5 and off[[0, 1, 4, 5]].max() < 1e-5 and off[[2, 3, 6, 7]].min() > 1e-3)
