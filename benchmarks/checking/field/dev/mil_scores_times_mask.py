"""Gated attention over a bag of tiles multiplies scores by the 0/1 mask before the softmax, so padding has the score 0. Source: github.com/georg-wolflein/good-features/pull/1"""
import torch
from torch import nn
import intently as it

expect = ["padding-attended", "mask-too-weak"]
words = "the score of padding is 0, not minus infinity"


class BagAttention(nn.Module):
    def __init__(self, features, hidden, slip):
        super().__init__()
        self.slip = slip
        self.signal = nn.Sequential(nn.Linear(features, hidden), nn.Tanh())
        self.gate = nn.Sequential(nn.Linear(features, hidden), nn.Sigmoid())
        self.score = nn.Linear(hidden, 1)
        self.head = nn.Linear(features, 3)

    def forward(self, feats, mask=None):
        s = self.score(self.signal(feats) * self.gate(feats)).squeeze(-1)
        if mask is not None:
            s = s * mask if self.slip else s.masked_fill(~mask, -torch.inf)
        return self.head(torch.einsum("bn,bnf->bf", s.softmax(-1), feats))


def make(slip):
    torch.manual_seed(7)
    return BagAttention(32, 16, slip).eval()


def asks():
    torch.manual_seed(0)
    mask = torch.tensor([[True] * 8, [True] * 5 + [False] * 3])
    return dict(inputs=dict(feats=torch.randn(2, 8, 32), mask=mask), mask=it.padding(mask))


def wrong(): return make(True)
def right(): return make(False)


def proof():
    a = asks()["inputs"]
    short = a["feats"][1:, :5]
    full = torch.ones(1, 5, dtype=torch.bool)
    far = [(m(**a)[1] - m(short, full)[0]).abs().max().item() for m in (wrong(), right())]
    return far[0] > 1e-3 and far[1] < 1e-5
