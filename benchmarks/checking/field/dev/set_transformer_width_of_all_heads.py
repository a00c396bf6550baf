"""The scale comes from the width of all heads together, after they were split. Source: github.com/juho-lee/set_transformer/issues/18"""
import math

import torch
from torch import nn
from torch.nn import functional as F

expect = ["scale-model-width"]
words = "scores of one head are divided by sqrt of the width of all heads"


class SetBlock(nn.Module):
    """Multihead attention block of a set transformer: X attends to Y, no output projection of heads."""

    def __init__(self, x_width, y_width, width, heads):
        super().__init__()
        self.width, self.heads = width, heads
        self.to_q, self.to_k, self.to_v = nn.Linear(x_width, width), nn.Linear(y_width, width), nn.Linear(y_width, width)
        self.feed = nn.Linear(width, width)

    def temperature(self):
        return math.sqrt(self.width)

    def forward(self, x, y):
        q, k, v = self.to_q(x), self.to_k(y), self.to_v(y)
        part = self.width // self.heads
        q_, k_, v_ = (torch.cat(z.split(part, dim=2), dim=0) for z in (q, k, v))
        a = torch.softmax(q_.bmm(k_.transpose(1, 2)) / self.temperature(), dim=2)
        o = torch.cat((q_ + a.bmm(v_)).split(x.size(0), dim=0), dim=2)
        return o + F.relu(self.feed(o))


class Mended(SetBlock):
    def temperature(self):
        return math.sqrt(self.width // self.heads)


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 5, 16), y=torch.randn(2, 8, 24)))


def _make(kind):
    torch.manual_seed(0)
    return kind(16, 24, 32, 4).eval()


def wrong():
    return _make(SetBlock)


def right():
    return _make(Mended)


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-3)
