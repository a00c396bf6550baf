"""Batched decoding leaves out the attention sinks of the model. Source: github.com/sgl-project/sglang/pull/30050"""
import numpy as np
import intently as it

expect = ["sinks-missing"]
words = "the decode step normalises over keys only; the reference has a sink for each head"

SINKS = np.array([0.5, 1.5, -0.5, 2.0], "float32")


def make(with_sinks):
    def batched_decode(queries, key_cache, value_cache, lengths):
        """(b, h, 1, d) queries; (b, g, s, d) caches, of which lengths[i] slots are filled."""
        h, d = queries.shape[1], queries.shape[-1]
        group = h // key_cache.shape[1]
        k = np.repeat(key_cache, group, axis=1)
        v = np.repeat(value_cache, group, axis=1)
        scores = (queries * d ** -0.5) @ k.swapaxes(-1, -2)
        filled = np.arange(k.shape[2])[None] < lengths[:, None]
        scores = np.where(filled[:, None, None], scores, -np.inf)
        top = scores.max(axis=-1, keepdims=True)
        if with_sinks:
            sink = SINKS[None, :, None, None]
            top = np.maximum(top, sink)
        e = np.exp(scores - top)
        total = e.sum(axis=-1, keepdims=True)
        if with_sinks:
            total = total + np.exp(sink - top)
        return (e / total) @ v

    return batched_decode


def reference(queries, key_cache, value_cache, lengths):
    """The unpatched model: a column of sinks beside the scores, dropped after the softmax."""
    b, h, t, d = queries.shape
    group = h // key_cache.shape[1]
    out = np.zeros_like(queries)
    for row in range(b):
        for head in range(h):
            n = lengths[row]
            z = queries[row, head] @ key_cache[row, head // group, :n].T / np.sqrt(d)
            z = np.concatenate([z, np.full((t, 1), SINKS[head])], axis=-1)
            w = np.exp(z - z.max(-1, keepdims=True))
            w = (w / w.sum(-1, keepdims=True))[:, :-1]
            out[row, head] = w @ value_cache[row, head // group, :n]
    return out


LENGTHS = [7, 5]


def asks():
    g = np.random.default_rng(9)
    x = lambda *s: g.standard_normal(s).astype("float32")
    inputs = dict(queries=x(2, 4, 1, 8), key_cache=x(2, 2, 8, 8), value_cache=x(2, 2, 8, 8),
                  lengths=np.array(LENGTHS))
    return dict(inputs=inputs, mask=it.padding(LENGTHS), like=reference)


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    i = asks()["inputs"]
    d = lambda f: np.abs(f(**i) - reference(**i)).max()
    return bool(d(wrong()) > 1e-2 and d(right()) < 1e-5)
