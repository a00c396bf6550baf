"""The additive attention of a translation tutorial takes the softmax over the padded source, too. Source: github.com/tensorflow/tensorflow/issues/43941"""
import keras
import torch
from keras import layers, ops
import intently as it

expect = ["padding-attended", "mask-missing"]
words = "padding of the source sentence gets attention weights"


class Scorer(layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.of_state = layers.Dense(units)
        self.of_source = layers.Dense(units)
        self.to_score = layers.Dense(1)

    def call(self, state, source, real=None):
        score = self.to_score(ops.tanh(self.of_state(ops.expand_dims(state, 1)) + self.of_source(source)))
        if real is not None:
            score = ops.where(ops.expand_dims(real, -1), score, -1e9)
        share = ops.softmax(score, axis=1)
        return ops.sum(share * source, axis=1)


class OneStep(keras.Model):
    """The source is embedded and read by a GRU; the decoder's state asks."""

    def __init__(self, hides_padding, words=20, width=24):
        super().__init__()
        self.embed = layers.Embedding(words, width)
        self.reader = layers.GRU(width, return_sequences=True)
        self.scorer = Scorer(16)
        self.hides_padding = hides_padding

    def call(self, source, state):
        read = self.reader(self.embed(source))
        real = ops.not_equal(source, 0) if self.hides_padding else None
        return self.scorer(state, read, real)


def _inputs():
    torch.manual_seed(2)
    source = torch.tensor([[4, 9, 2, 7, 15, 3, 8], [6, 11, 5, 1, 0, 0, 0]])
    return dict(source=source, state=torch.randn(2, 24))


def asks():
    x = _inputs()
    return dict(inputs=x, mask=it.padding(x["source"] != 0))


def _build(hides):
    keras.utils.set_random_seed(0)
    model = OneStep(hides)
    model(**_inputs())
    return model


def wrong():
    return _build(False)


def right():
    return _build(True)


def proof():
    x = _inputs()
    a, b = wrong(), right()
    b.set_weights(a.get_weights())
    d = (a(**x) - b(**x)).abs().amax(1)
    return bool(d[0] < 1e-6 and d[1] > 1e-3)
