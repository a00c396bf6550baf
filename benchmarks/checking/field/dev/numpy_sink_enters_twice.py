"""Decoding with the keys in splits: where the window empties split 0, that split publishes the sink and the first one with keys adds it again. Source: github.com/ROCm/rocm-libraries/issues/12227"""
import intently as it
import numpy as np

expect = ["sinks-other", "sink"]
words = "the softmax's denominator holds the sink twice"

WINDOW, SPLITS = 3, 3


def asks():
    rng = np.random.default_rng(14)
    draw = lambda n: rng.normal(size=(2, 4, n, 8)).astype("float32")
    return dict(inputs=dict(q=draw(3), k=draw(9), v=draw(9), sinks=np.array([0.5, -0.3, 1.2, 0.1], "float32")),
                mask=it.window(WINDOW - 1, 0))


def make(sink_of_empty_first_split):
    def split_decode(q, k, v, sinks):
        t, s = q.shape[-2], k.shape[-2]
        size = -(-s // SPLITS)
        y = np.zeros(q.shape[:-1] + v.shape[-1:], q.dtype)
        for i in range(t):
            position = s - t + i
            low, high = max(0, position - WINDOW + 1), position + 1
            parts, lses = [], []
            for split in range(SPLITS):
                a, b = max(low, split * size), min(high, (split + 1) * size)
                if a >= b:
                    publish = split == 0 and sink_of_empty_first_split(low, high)
                    lses.append(np.broadcast_to(sinks if publish else np.full_like(sinks, -np.inf), q.shape[:2]))
                    parts.append(np.zeros(v.shape[:2] + v.shape[-1:], v.dtype))
                    continue
                z = np.einsum("bhd,bhjd->bhj", q[:, :, i], k[:, :, a:b]) / np.sqrt(q.shape[-1])
                before_is_empty = split == 0 or max(low, (split - 1) * size) >= min(high, split * size)
                if before_is_empty:                                             # the first with work: it starts from the sink
                    top = np.maximum(z.max(-1), sinks)
                    total = np.exp(sinks - top)
                else:
                    top, total = z.max(-1), 0.0
                e = np.exp(z - top[..., None])
                total = total + e.sum(-1)
                lses.append(top + np.log(total))
                parts.append(np.einsum("bhj,bhjd->bhd", e, v[:, :, a:b]) / total[..., None])
            lse = np.stack(lses)
            share = np.exp(lse - lse.max(0))
            share = share / share.sum(0)
            y[:, :, i] = (share[..., None] * np.stack(parts)).sum(0)
        return y

    return split_decode


def wrong():
    return make(lambda low, high: True)


def right():
    return make(lambda low, high: low >= high)


def proof():
    call = asks()["inputs"]
    q, k, v, sinks = (call[n] for n in ("q", "k", "v", "sinks"))
    z = q @ k.swapaxes(-1, -2) / np.sqrt(8)
    row, column = np.arange(3)[:, None] + 6, np.arange(9)
    e = np.where((column <= row) & (column > row - WINDOW), np.exp(z), 0)
    exact = lambda times: e @ v / (e.sum(-1, keepdims=True) + times * np.exp(sinks)[:, None, None])
    return bool(np.abs(right()(**call) - exact(1)).max() < 1e-5 and np.abs(wrong()(**call) - exact(2)).max() < 1e-5
                and np.abs(exact(1) - exact(2)).max() > 1e-2)
