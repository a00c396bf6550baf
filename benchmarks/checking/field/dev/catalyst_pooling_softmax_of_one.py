"""Attention pooling of observations scores as (b, 1, t) and takes the softmax over the axis of size one: every weight is 1. Source: github.com/catalyst-team/catalyst/pull/285"""
import torch
from torch import nn

expect = ["not-normalised", "softmax-over-queries"]
words = "weights of all observations are 1"


class HistoryPooling(nn.Module):
    def __init__(self, width, slip):
        super().__init__()
        self.score = nn.Sequential(nn.Conv1d(width, 1, kernel_size=1), nn.Softmax(dim=1 if slip else 2))

    def forward(self, features):
        last = features[:, -1:]
        weights = self.score(features.transpose(1, 2))
        pooled = (features * weights.transpose(1, 2)).sum(1, keepdim=True)
        return torch.cat((last, pooled), 1).flatten(1)


def make(slip):
    torch.manual_seed(17)
    return HistoryPooling(32, slip).eval()


def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(features=torch.randn(2, 6, 32)))


def wrong(): return make(True)
def right(): return make(False)


def proof():
    x = torch.ones(2, 6, 32)
    return torch.allclose(wrong()(x)[:, 32:], torch.full((2, 32), 6.)) and torch.allclose(right()(x), torch.ones(2, 64))
