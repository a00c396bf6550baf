"""Additive attention of a seq2seq decoder over encoder states runs its softmax over the steps after a sentence's end too. Source: github.com/tensorflow/tensorflow/issues/512"""
import os
os.environ.setdefault("KERAS_BACKEND", "torch")
import intently as it
import keras
import numpy as np
import torch
from keras import layers, ops

expect = ["padding-attended", "mask-missing"]
words = "states after the end are zero vectors, and still take weight"


def asks():
    return dict(inputs=dict(states=torch.randn(2, 4, 20), memory=torch.randn(2, 7, 24), lengths=torch.tensor([7, 4])),
                mask=it.padding([7, 4]))


class ReadsMemory(layers.Layer):
    """Several additive reads of the encoder's states, side by side. The encoder gives zeros after the end."""

    def __init__(self, reads, size, hide, **kwargs):
        super().__init__(**kwargs)
        self.reads, self.size, self.hide = reads, size, hide

    def build(self, states, memory, lengths=None):
        glorot = "glorot_uniform"
        self.of_state = self.add_weight(shape=(self.reads, states[-1], self.size), initializer=glorot, name="of_state")
        self.of_memory = self.add_weight(shape=(self.reads, memory[-1], self.size), initializer=glorot, name="of_memory")
        self.judge = self.add_weight(shape=(self.reads, self.size), initializer=keras.initializers.RandomNormal(stddev=1.0),
                                     name="judge")

    def call(self, states, memory, lengths):
        steps = ops.arange(ops.shape(memory)[1])
        real = ops.expand_dims(steps, 0) < ops.expand_dims(ops.cast(lengths, steps.dtype), 1)        # (b, s)
        memory = memory * ops.cast(real, memory.dtype)[..., None]
        asked = ops.einsum("btx,rxe->brte", states, self.of_state)
        stored = ops.einsum("bsx,rxe->brse", memory, self.of_memory)
        energy = ops.einsum("brtse,re->brts", ops.tanh(asked[:, :, :, None] + stored[:, :, None]), self.judge)
        if self.hide:
            energy = ops.where(real[:, None, None], energy, -1e30)
        weights = ops.softmax(energy, axis=-1)
        read = ops.einsum("brts,bsx->btrx", weights, memory)
        return ops.reshape(read, (ops.shape(read)[0], ops.shape(read)[1], -1))


def make(hide):
    keras.utils.set_random_seed(5)
    layer = ReadsMemory(2, 16, hide)
    layer.build((2, 4, 20), (2, 7, 24), (2,))
    return layer


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    call = asks()["inputs"]
    a, b = wrong(), right()
    y, z = (ops.convert_to_numpy(m(**call)) for m in (a, b))
    short = dict(call, memory=call["memory"][:, :4], lengths=torch.tensor([4, 4]))
    alone = [ops.convert_to_numpy(m(**short))[1] for m in (a, b)]
    return bool(np.abs(y[1] - z[1]).max() > 1e-2 and np.abs(y[0] - z[0]).max() < 1e-6
                and np.abs(y[1] - alone[0]).max() > 1e-2 and np.abs(z[1] - alone[1]).max() < 1e-5)
