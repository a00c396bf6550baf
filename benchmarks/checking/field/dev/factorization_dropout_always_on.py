"""An attentional factorization machine calls F.dropout on its weights without training=self.training, so evaluation is random. Source: github.com/rixwew/pytorch-fm/issues/21"""
import itertools
import torch
from torch import nn
import torch.nn.functional as F

expect = ["dropout-in-eval"]
words = "dropout of attention weights and output stays on in eval()"


class PairAttention(nn.Module):
    def __init__(self, width, hidden, rates):
        super().__init__()
        self.hidden = nn.Linear(width, hidden)
        self.score = nn.Linear(hidden, 1)
        self.last = nn.Linear(width, 1)
        self.rates = rates

    def drop(self, x, rate):
        return F.dropout(x, p=rate)

    def forward(self, fields):
        left, right_ = zip(*itertools.combinations(range(fields.shape[1]), 2))
        pairs = fields[:, list(left)] * fields[:, list(right_)]
        weight = self.score(self.hidden(pairs).relu()).softmax(dim=1)
        pooled = (self.drop(weight, self.rates[0]) * pairs).sum(dim=1)
        return self.last(self.drop(pooled, self.rates[1]))


class PairAttentionMended(PairAttention):
    def drop(self, x, rate):
        return F.dropout(x, p=rate, training=self.training)


class Recommender(nn.Module):
    def __init__(self, kind, sizes=(5, 7, 4, 6, 3), width=16, hidden=16, rates=(0.2, 0.2)):
        super().__init__()
        start = torch.tensor((0,) + sizes[:-1]).cumsum(0)
        self.register_buffer("start", start)
        self.embed = nn.Embedding(sum(sizes), width)
        self.linear = nn.Embedding(sum(sizes), 1)
        self.bias = nn.Parameter(torch.zeros(1))
        self.pairs = kind(width, hidden, rates)

    def forward(self, fields):
        at = fields + self.start
        return torch.sigmoid(self.linear(at).sum(1) + self.bias + self.pairs(self.embed(at))).squeeze(1)


def asks():
    return dict(inputs=dict(fields=torch.tensor([[1, 2, 3, 4, 2], [0, 6, 1, 5, 1]])))


def wrong():
    torch.manual_seed(0)
    return Recommender(PairAttention).eval()


def right():
    torch.manual_seed(0)
    return Recommender(PairAttentionMended).eval()


def proof():
    x = asks()["inputs"]["fields"]
    bad, good = wrong(), right()
    with torch.no_grad():
        return not torch.allclose(bad(x), bad(x)) and torch.allclose(good(x), good(x))


if __name__ == "__main__":
    print(proof())
