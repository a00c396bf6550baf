"""End-to-end memory network: the match of question and sentences weights the memory without a softmax. Source: github.com/keras-team/keras/pull/3706"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import torch
from keras import layers, ops

expect = ["not-normalised"]
words = "the response is a sum of memories weighted by raw dot products"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(story=torch.randint(1, 20, (2, 6, 4)), question=torch.randint(1, 20, (2, 3))), scale=1.0)

class MemoryHop(layers.Layer):
    def __init__(self, probabilities, width=24):
        super().__init__()
        self.keys = layers.Embedding(20, width)
        self.contents = layers.Embedding(20, width)
        self.asked = layers.Embedding(20, width)
        for one in (self.keys, self.contents, self.asked):
            one.embeddings_initializer = keras.initializers.RandomNormal(stddev=.5)
            one.build((None, None))
        self.probabilities = probabilities
        self.built = True

    def call(self, story, question):
        m = ops.sum(self.keys(story), axis=2)
        c = ops.sum(self.contents(story), axis=2)
        u = ops.sum(self.asked(question), axis=1)
        match = ops.einsum("bnd,bd->bn", m, u)
        if self.probabilities:
            match = ops.softmax(match, axis=-1)
        return ops.einsum("bn,bnd->bd", match, c) + u

def wrong():
    keras.utils.set_random_seed(1)
    return MemoryHop(False)

def right():
    keras.utils.set_random_seed(1)
    return MemoryHop(True)

def proof():
    i = asks()["inputs"]
    return bool((wrong()(**i) - right()(**i)).abs().max() > .5)
