"""The softmax over flattened rows finds the sink by row modulo heads, which holds for one query only. Source: github.com/modular/modular/pull/6591"""
import numpy as np

expect = ["sinks-other", "differs-from-reference"]
words = "rows of several queries use the sink of another head"


def softmax_rows(rows, sink_of_row):
    top = np.maximum(rows.max(1), sink_of_row)
    p = np.exp(rows - top[:, None])
    return p / (p.sum(1) + np.exp(sink_of_row - top))[:, None]


def sink_attention(q, k, v, sinks, by_row):
    b, h, t, d = q.shape
    s = k.shape[2]
    z = (q @ np.swapaxes(k, 2, 3)) / np.sqrt(d)
    rows = z.reshape(b * h * t, s)
    index = np.arange(b * h * t)
    head = index % h if by_row else index // t % h
    return softmax_rows(rows, sinks[head]).reshape(b, h, t, s) @ v


def asks():
    g = np.random.default_rng(0)
    shape = (2, 4, 5, 16)
    return dict(
        inputs=dict(
            q=g.standard_normal(shape),
            k=g.standard_normal(shape),
            v=g.standard_normal(shape),
            sinks=np.array([-1.0, 0.5, 1.5, 3.0]),
        ),
        like=right(),
    )


def wrong():
    def attention(q, k, v, sinks):
        return sink_attention(q, k, v, sinks, by_row=True)

    return attention


def right():
    def attention(q, k, v, sinks):
        return sink_attention(q, k, v, sinks, by_row=False)

    return attention


def proof():
    i = asks()["inputs"]
    z = i["q"] @ np.swapaxes(i["k"], 2, 3) / 4
    z = np.concatenate((z, np.broadcast_to(i["sinks"][:, None, None], z.shape[:3] + (1,))), -1)
    w = np.exp(z)
    ref = (w / w.sum(-1, keepdims=True))[..., :-1] @ i["v"]
    return bool(np.abs(right()(**i) - ref).max() < 1e-9) and bool(np.abs(wrong()(**i) - ref).max() > 1e-2)
