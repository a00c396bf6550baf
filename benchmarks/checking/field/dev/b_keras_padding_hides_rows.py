"""The additive padding mask is broadcast along the rows of the scores, so padded queries are hidden and padded keys are seen. Source: github.com/lsdefine/attention-is-all-you-need-keras/issues/16"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import torch
from keras import ops
import intently as it

expect = ["mask-on-queries", "padding-attended"]
words = "the padding mask is added as a column: it shifts whole rows of queries and leaves padded keys visible"


class DotAttention(keras.layers.Layer):
    def __init__(self, rows, **kw):
        super().__init__(**kw)
        self.rows = rows

    def call(self, query, key, value, real=None):
        score = ops.matmul(query, ops.transpose(key, (0, 2, 1))) / query.shape[-1] ** 0.5
        if real is not None:
            penalty = (1.0 - ops.cast(real, "float32")) * -1e10
            score = score + ops.expand_dims(penalty, 2 if self.rows else 1)
        return ops.matmul(ops.softmax(score, axis=-1), value)


LENGTHS = [4, 7]


def asks():
    torch.manual_seed(0)
    real = (torch.arange(7) < torch.tensor(LENGTHS)[:, None]).float()
    return dict(
        inputs=dict(query=torch.randn(2, 7, 32), key=torch.randn(2, 7, 32), value=torch.randn(2, 7, 32), real=real),
        mask=it.padding(LENGTHS),
    )


def wrong():
    return DotAttention(rows=True)


def right():
    return DotAttention(rows=False)


def proof():
    i = asks()["inputs"]
    j = dict(i, value=i["value"].clone())
    j["value"][0, 4:] += 5
    bad, good = wrong(), right()
    return bool((bad(**i) - bad(**j)).abs().max() > 1e-2) and bool((good(**i) - good(**j)).abs().max() < 1e-6)
