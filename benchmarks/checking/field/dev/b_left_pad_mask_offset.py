"""A batched cache starts its offset at minus the left padding and builds the causal mask from it, so padded rows have the wrong keys. Source: github.com/lablup/mlxcel/pull/76"""
import numpy as np

expect = ["mask-other", "padding-attended"]
words = "queries of a padded row are placed at offset - padding in the mask, so they see fewer of the latest keys, and the padding on the left"


def _attend(q, k, v, allowed):
    z = np.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    z = np.where(allowed, z, np.float32(-1e30))
    w = np.exp(z - z.max(-1, keepdims=True))
    return np.einsum("bhij,bhjd->bhid", w / w.sum(-1, keepdims=True), v)


class PaddedCache:
    """Keys and values of a batch whose rows are padded on the left."""

    def __init__(self, left_padding):
        self.left_padding = np.asarray(left_padding)
        self.offset = -self.left_padding            # true positions, for rotations
        self.stored = 0                             # rows of the buffer

    def mask(self, n, fixed):
        columns = np.arange(self.stored + n)
        if fixed:
            queries = self.stored + np.arange(n)
            seen = columns[None, None] <= queries[None, :, None]
            seen = seen & (columns >= self.left_padding[:, None])[:, None]
        else:
            queries = self.offset[:, None] + np.arange(n)
            seen = columns[None, None] <= queries[:, :, None]
        return np.broadcast_to(seen, (len(self.left_padding), n, self.stored + n))[:, None]

    def put(self, k, v):
        if self.stored:
            k, v = np.concatenate((self.k, k), 2), np.concatenate((self.v, v), 2)
        self.stored, self.offset = k.shape[2], k.shape[2] - self.left_padding
        self.k, self.v = k, v
        return k, v


def _decode(fixed, prompt=4):
    def decode(q, k, v, left_padding):
        cache, out = PaddedCache(left_padding), []
        pieces = [slice(0, prompt)] + [slice(i, i + 1) for i in range(prompt, q.shape[2])]
        for at in pieces:
            allowed = cache.mask(q[:, :, at].shape[2], fixed)
            keys, values = cache.put(k[:, :, at], v[:, :, at])
            out.append(_attend(q[:, :, at], keys, values, allowed))
        return np.concatenate(out, 2)
    return decode


def asks():
    import intently as it
    import torch
    r = np.random.default_rng(1)
    q, k, v = (r.standard_normal((2, 2, 7, 16)).astype("float32") for _ in "qkv")
    padding = np.array([0, 2])
    real = torch.arange(7)[None] >= torch.tensor(padding)[:, None]
    return dict(inputs=dict(q=q, k=k, v=v, left_padding=padding), mask=it.causal() & it.padding(real))


def wrong():
    return _decode(False)


def right():
    return _decode(True)


def proof():
    a = asks()["inputs"]
    w, r = wrong()(**a), right()(**a)
    alone = right()(a["q"][1:, :, 2:], a["k"][1:, :, 2:], a["v"][1:, :, 2:], np.array([0]))
    return np.allclose(r[1:, :, 2:], alone, atol=1e-5) and np.allclose(w[0], r[0]) and not np.allclose(w[1:, :, 2:], alone, atol=1e-2)
