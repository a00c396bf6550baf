"""The example of keras.layers.Attention embeds query_input twice, so the values of the second text never arrive. Source: github.com/tensorflow/tensorflow/issues/34283"""
import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np
import torch
from keras import ops

expect = ["cross-ignores-context"]
words = "value embeddings are made of the query's tokens"


def asks():
    g = torch.Generator().manual_seed(1)
    return dict(inputs=dict(query_input=torch.randint(0, 40, (2, 6), generator=g), value_input=torch.randint(0, 40, (2, 9), generator=g)), scale=1.0)


class TextPair(keras.layers.Layer):
    def __init__(self, reads_value):
        super().__init__()
        self.reads_value = reads_value
        self.token_embedding = keras.layers.Embedding(40, 24, embeddings_initializer="random_normal")
        self.cnn = keras.layers.Conv1D(24, 3, padding="same")
        self.attention = keras.layers.Attention()

    def build(self, *shapes):
        self.token_embedding.build((None, None))
        self.token_embedding.embeddings.assign(10 * self.token_embedding.embeddings)
        self.cnn.build((None, None, 24))
        self.attention.build([(None, None, 24)] * 2)
        self.built = True

    def call(self, query_input, value_input):
        query_embeddings = self.token_embedding(query_input)
        value_embeddings = self.token_embedding(value_input if self.reads_value else query_input)
        return self.attention([self.cnn(query_embeddings), self.cnn(value_embeddings)])


def _make(reads_value):
    keras.utils.set_random_seed(0)
    layer = TextPair(reads_value)
    layer.build()
    return layer


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    other = dict(a, value_input=(a["value_input"] + 1) % 40)
    changed = lambda f: np.abs(ops.convert_to_numpy(f(**a)) - ops.convert_to_numpy(f(**other))).max() > 1e-2
    return not changed(wrong()) and changed(right())


if __name__ == "__main__":
    print(proof())
