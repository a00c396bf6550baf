"""The score put in place of padding is the mask times a large negative number: 0 exactly where padding is. Source: github.com/30stomercury/Interaction-Aware-Attention-Network/issues/1"""
import keras
import torch
from keras import layers, ops
import intently as it

expect = ["padding-attended", "mask-too-weak", "mask-missing", "mask-other", "not-normalised"]
words = "padded frames get the score 0 instead of a very low one"


class InteractionPool(layers.Layer):
    """Frames of the present utterance are pooled in view of two earlier utterances."""

    def __init__(self, width, filler):
        super().__init__()
        self.frame, self.own, self.other = (layers.Dense(width, use_bias=i == 0) for i in range(3))
        self.score = layers.Dense(1, use_bias=False)
        self.filler = filler

    def call(self, states, previous, opposite, features):
        real = ops.sign(ops.abs(ops.sum(features, axis=-1)))
        per_frame = ops.expand_dims(real, -1)
        states = states * per_frame
        previous = ops.expand_dims(previous, 1) * per_frame
        opposite = ops.expand_dims(opposite, 1) * per_frame
        v = ops.tanh(self.frame(states) + self.own(previous) + self.other(opposite))
        vu = ops.squeeze(self.score(v), -1)
        vu = ops.where(ops.equal(real, 0), self.filler(real), vu)
        alphas = ops.softmax(vu)
        return ops.sum(states * ops.expand_dims(alphas, -1), axis=1)


LENGTHS = [8, 5]


def _inputs():
    torch.manual_seed(4)
    features = torch.randn(2, 8, 6)
    features[1, 5:] = 0
    return dict(states=torch.randn(2, 8, 24), previous=torch.randn(2, 24), opposite=torch.randn(2, 24), features=features)


def asks():
    return dict(inputs=_inputs(), mask=it.padding(LENGTHS))


def _build(filler):
    keras.utils.set_random_seed(2)
    layer = InteractionPool(16, filler)
    layer(**_inputs())
    return layer


def wrong():
    return _build(lambda real: real * -1e8)


def right():
    return _build(lambda real: ops.ones_like(real) * -1e8)


def proof():
    x = _inputs()
    a, b = wrong(), right()
    b.set_weights(a.get_weights())
    d = (a(**x) - b(**x)).abs().amax(1)
    return bool(d[0] < 1e-6 and d[1] > 1e-3)
