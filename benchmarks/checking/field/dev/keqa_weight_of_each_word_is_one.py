"""A question encoder scores each word by a linear unit and takes the softmax over the axis of that one score, so every weight is 1. Source: github.com/DEEP-PolyU/KEQA_WSDM19/issues/2"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["not-normalised"]
words = "the softmax runs over an axis of length one, so each word has weight 1 and the weights of a question sum to its length"


class RelationEncoder(nn.Module):
    """Words of a question (time, batch) to a vector of its relation."""

    def __init__(self, vocab=60, embed=24, hidden=16, target=20):
        super().__init__()
        self.embed = nn.Embedding(vocab, embed)
        self.rnn = nn.LSTM(embed, hidden, bidirectional=True)
        self.attn = nn.Linear(embed + 2 * hidden, 1)
        self.to_target = nn.Sequential(nn.ReLU(), nn.Linear(2 * hidden, target))

    def weights(self, energy):
        steps, batch, one = energy.shape
        return F.softmax(energy.view(steps * batch, one), dim=-1).view(steps, batch, one)

    def forward(self, words):
        x = self.embed(words)
        states, _ = self.rnn(x)
        w = self.weights(self.attn(torch.cat((x, states), dim=2)))
        summary = (w * states).sum(dim=0)
        return F.normalize(self.to_target(summary), dim=-1)


class Mended(RelationEncoder):
    def weights(self, energy):
        return F.softmax(energy, dim=0)


def asks():
    return dict(inputs=dict(words=torch.randint(0, 60, (7, 3))))


def _make(cls):
    torch.manual_seed(0)
    return cls().eval()


def wrong():
    return _make(RelationEncoder)


def right():
    return _make(Mended)


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-4)
