"""Attention over word features divides the softmax by sqrt(d) where the scores should be divided. Source: github.com/LeePleased/StackPropagation-SLU/pull/9"""
import math

import torch
from torch import nn

expect = ["no-scale", "not-normalised"]
words = "the softmax is taken of raw scores, and its result is divided by sqrt(d), so rows sum to 1/sqrt(d)"


class WordAttention(nn.Module):
    def __init__(self, fixed, width=24, hidden=32, p=0.4):
        super().__init__()
        self.fixed = fixed
        self.hidden = hidden
        self.to_q = nn.Linear(width, hidden)
        self.to_k = nn.Linear(width, hidden)
        self.to_v = nn.Linear(width, hidden)
        self.drop = nn.Dropout(p)

    def forward(self, query, key, value):
        q, k, v = self.to_q(query), self.to_k(key), self.to_v(value)
        if self.fixed:
            w = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(self.hidden), -1)
        else:
            w = torch.softmax(q @ k.transpose(-2, -1), -1) / math.sqrt(self.hidden)
        return self.drop(w @ v)


def asks():
    torch.manual_seed(1)
    x = torch.randn(2, 7, 24)
    return dict(inputs=dict(query=x, key=x, value=x))


def _make(fixed):
    torch.manual_seed(0)
    return WordAttention(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    return not torch.allclose(wrong()(**a), right()(**a), atol=1e-2)
