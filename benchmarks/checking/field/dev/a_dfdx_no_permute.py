"""Multi-head attention reshapes projections straight to (b, h, t, d) and its result straight back, without permuting. Source: github.com/chelsea0x3b/dfdx/issues/158"""
import torch
import torch.nn as nn

expect = ["split-by-reshape", "merged-by-reshape"]
words = "heads are split and merged by a reshape alone"


class Heads(nn.Module):
    def __init__(self, width=32, key=32, value=48, heads=4):
        super().__init__()
        self.h = heads
        self.wq, self.wk, self.wv = nn.Linear(width, key), nn.Linear(width, key), nn.Linear(width, value)
        self.wo = nn.Linear(value, width)

    def split(self, x):
        b, s, c = x.shape
        return x.reshape(b, self.h, s, c // self.h)

    def merge(self, y):
        b, h, s, d = y.shape
        return y.reshape(b, s, h * d)

    def forward(self, x, context):
        q, k, v = self.split(self.wq(x)), self.split(self.wk(context)), self.split(self.wv(context))
        scores = torch.matmul(q, k.transpose(2, 3)) * (1.0 / q.shape[-1] ** 0.5)
        return self.wo(self.merge(torch.matmul(scores.softmax(3), v)))


class HeadsMended(Heads):
    def split(self, x):
        b, s, c = x.shape
        return x.reshape(b, s, self.h, c // self.h).permute(0, 2, 1, 3)

    def merge(self, y):
        b, h, s, d = y.shape
        return y.permute(0, 2, 1, 3).reshape(b, s, h * d)


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 5, 32), context=torch.randn(2, 7, 32)))


def wrong():
    torch.manual_seed(0)
    return Heads().eval()


def right():
    torch.manual_seed(0)
    return HeadsMended().eval()


def proof():
    i = asks()["inputs"]
    return not torch.allclose(wrong()(**i), right()(**i), atol=1e-5)
