"""Attention over nodes of several graphs multiplies scores of other graphs by -1e6 instead of adding it, then zeroes their weights. Source: github.com/leffff/graphormer-pyg/issues/14"""
import torch
from torch import nn
import intently as it

expect = ["mask-after-softmax", "not-normalised", "mask-other"]
words = "a negative score times -1e6 wins the softmax and is zeroed after it: rows do not sum to 1"


class NodeHead(nn.Module):
    def __init__(self, width, size, slip):
        super().__init__()
        self.slip = slip
        self.q = nn.Linear(width, size)
        self.k = nn.Linear(width, size)
        self.v = nn.Linear(width, size)

    def forward(self, x, ptr):
        n = x.shape[0]
        outside = torch.full((n, n), -1e6)
        inside = torch.zeros(n, n)
        for a, b in zip(ptr[:-1], ptr[1:]):
            outside[a:b, a:b] = 1. if self.slip else 0.
            inside[a:b, a:b] = 1.
        scores = self.q(x).mm(self.k(x).t()) / self.q.out_features ** 0.5
        scores = scores * outside if self.slip else scores + outside
        weights = scores.softmax(-1) * inside
        return weights.mm(self.v(x))


def make(slip):
    torch.manual_seed(1)
    return NodeHead(24, 16, slip).eval()


def asks():
    torch.manual_seed(0)
    ids = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    return dict(inputs=dict(x=torch.randn(7, 24), ptr=[0, 3, 7]), mask=it.segments(ids))


def wrong(): return make(True)
def right(): return make(False)


def proof():
    a = asks()["inputs"]
    ones = []
    for m in (wrong(), right()):
        nn.init.zeros_(m.v.weight); nn.init.ones_(m.v.bias)
        ones.append(m(**a))
    return ones[0].min().item() < 0.5 and torch.allclose(ones[1], torch.ones(7, 16))
