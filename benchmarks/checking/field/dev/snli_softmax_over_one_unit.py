"""The softmax is the activation of a dense layer of one unit, so every weight is 1. Source: github.com/keras-team/keras/issues/2067"""
import keras
import torch
from keras import layers, ops

expect = ["not-normalised", "query-without-influence"]
words = "the softmax runs over an axis of one entry: all weights are 1"


class WordAttention(layers.Layer):
    """The last state of the hypothesis looks at the states of the premise (Rocktaeschel et al.)."""

    def __init__(self, width, activation):
        super().__init__()
        self.for_premise = layers.Dense(width, use_bias=False)
        self.for_last = layers.Dense(width, use_bias=False)
        self.weigh = layers.TimeDistributed(layers.Dense(1, activation=activation))
        self.activation_later = activation != "softmax"

    def call(self, premise, last):
        length = premise.shape[1]
        seen = self.for_premise(premise) + layers.RepeatVector(length)(self.for_last(last))
        share = self.weigh(ops.tanh(seen))
        if self.activation_later:
            share = ops.expand_dims(ops.softmax(ops.squeeze(share, -1), axis=-1), -1)
        return ops.sum(premise * share, axis=1)


def _inputs():
    torch.manual_seed(3)
    return dict(premise=torch.randn(2, 8, 32), last=torch.randn(2, 32))


def asks():
    return dict(inputs=_inputs())


def _build(activation):
    keras.utils.set_random_seed(1)
    layer = WordAttention(32, activation)
    layer(**_inputs())
    return layer


def wrong():
    return _build("softmax")


def right():
    return _build("linear")


def proof():
    x = _inputs()
    a, b = wrong(), right()
    b.set_weights(a.get_weights())
    return bool((a(**x) - x["premise"].sum(1)).abs().max() < 1e-5) and bool((a(**x) - b(**x)).abs().max() > 0.1)
