"""The softmax over attention logits (batch, items, 1) goes along their last axis of length 1, so every weight is 1. Source: github.com/phanideepgampa/stacked-capsule-networks/pull/5"""
import torch
from torch import nn

expect = ["not-normalised"]
words = "softmax along an axis of one element: all weights are 1 and the pooling is a sum"


def asks():
    return dict(inputs=dict(x=torch.randn(2, 7, 24, generator=torch.Generator().manual_seed(4))))


class WordPooling(nn.Module):
    def __init__(self, width=24, axis=2):
        super().__init__()
        self.hidden, self.score = nn.Linear(width, width), nn.Linear(width, 1, bias=False)
        self.normalise = nn.Softmax(dim=axis)

    def forward(self, x):
        attention = self.score(torch.tanh(self.hidden(x)))
        return (self.normalise(attention) * x).sum(1)


def _make(axis):
    torch.manual_seed(0)
    return WordPooling(axis=axis).eval()


def wrong():
    return _make(2)


def right():
    return _make(1)


def proof():
    x = asks()["inputs"]["x"]
    return torch.allclose(wrong()(x), x.sum(1), atol=1e-5) and not torch.allclose(right()(x), x.sum(1), atol=1e-2)


if __name__ == "__main__":
    print(proof())
