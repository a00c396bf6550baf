"""Grouped decoding takes query heads in tiles and gives a whole tile the key head of its first head, although tiles cross groups. Source: github.com/FlashML-org/FreeToken/pull/177"""
import numpy as np

expect = ["differs-from-reference", "key-heads-tiled"]
words = "the first query head of the second group reads the key head of the first group"
TILE = 2


def attend(q, k, v):
    z = np.einsum("bnd,bsd->bns", q, k) / np.sqrt(q.shape[-1])
    p = np.exp(z - z.max(-1, keepdims=True))
    return np.einsum("bns,bsd->bnd", p / p.sum(-1, keepdims=True), v)


def asks():
    g = np.random.default_rng(0)
    return dict(
        inputs=dict(
            q=g.standard_normal((2, 6, 1, 16)), k=g.standard_normal((2, 2, 7, 16)), v=g.standard_normal((2, 2, 7, 16))
        ),
        like=right(),
    )


def wrong():
    def decode(q, k, v):
        heads, group = q.shape[1], q.shape[1] // k.shape[1]
        out = np.zeros(q.shape[:3] + v.shape[-1:])
        for start in range(0, heads, TILE):
            mine = slice(start, start + TILE)
            source = start // group
            out[:, mine, 0] = attend(q[:, mine, 0], k[:, source], v[:, source])
        return out

    return decode


def right():
    def decode(q, k, v):
        group = q.shape[1] // k.shape[1]
        out = np.zeros(q.shape[:3] + v.shape[-1:])
        for source in range(k.shape[1]):
            for start in range(source * group, (source + 1) * group, TILE):
                mine = slice(start, min(start + TILE, (source + 1) * group))
                out[:, mine, 0] = attend(q[:, mine, 0], k[:, source], v[:, source])
        return out

    return decode


def proof():
    i = asks()["inputs"]
    k, v = (np.repeat(i[n], 3, 1) for n in "kv")
    ref = attend(i["q"].reshape(12, 1, 16), k.reshape(12, 7, 16), v.reshape(12, 7, 16)).reshape(2, 6, 1, 16)
    gap = np.abs(wrong()(**i) - ref).max((0, 2, 3))
    return bool(np.abs(right()(**i) - ref).max() < 1e-9) and bool(gap[3] > 1e-2 and np.delete(gap, 3).max() < 1e-9)
