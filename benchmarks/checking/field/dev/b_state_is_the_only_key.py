"""Keras' Attention is called with the hidden states of an LSTM as queries and its last state as the only value, so all weights are 1. Source: 55276.net/qa/?qa=1006962 (a question and answer on Keras attention for time series)"""
import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import torch
from keras import ops

expect = ["cross-exchanged", "query-without-influence"]
words = "the state should ask the sequence; here the sequence asks the state, one key whose weight is always 1, and the output is the state repeated"


class SeriesAttention(keras.layers.Layer):
    def __init__(self, fixed):
        super().__init__()
        self.fixed = fixed
        self.attention = keras.layers.Attention()

    def call(self, sequence, state):
        state = ops.expand_dims(state, 1)
        return self.attention([state, sequence] if self.fixed else [sequence, state])


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(sequence=torch.randn(2, 8, 16), state=torch.randn(2, 16)), scale=1.0)


def wrong():
    return SeriesAttention(False)


def right():
    return SeriesAttention(True)


def proof():
    a = asks()["inputs"]
    b = dict(a, sequence=torch.randn(2, 8, 16))
    return torch.allclose(wrong()(**a), wrong()(**b)) and not torch.allclose(right()(**a), right()(**b))
