"""Attention along the height views (b, c, h, w) as (b, c w, h) without moving the height last, and attends along rows. Source: github.com/plemeri/UACANet/issues/8"""
import torch
from torch import nn

expect = ["split-by-reshape"]
words = "a permute is missing before the view: what should be a column holds neighbours of a row"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 16, 4, 6)), scale=1.0)

class AlongHeight(nn.Module):
    def __init__(self, channels, moved):
        super().__init__()
        self.query, self.key = nn.Conv2d(channels, channels // 8, 1), nn.Conv2d(channels, channels // 8, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        self.gamma = nn.Parameter(torch.ones(1))
        self.moved = moved

    def lines(self, y):
        return (y.transpose(2, 3) if self.moved else y).reshape(y.shape[0], -1, y.shape[2])

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.lines(self.query(x)), self.lines(self.key(x)), self.lines(self.value(x))
        p = torch.softmax(q.transpose(1, 2) @ k, -1)
        y = v @ p.transpose(1, 2)
        y = y.reshape(b, c, w, h).transpose(2, 3) if self.moved else y.reshape(b, c, h, w)
        return self.gamma * y + x

def wrong():
    torch.manual_seed(1)
    return AlongHeight(16, False).eval()

def right():
    torch.manual_seed(1)
    return AlongHeight(16, True).eval()

def proof():
    x = asks()["inputs"]["x"]
    order = torch.randperm(4, generator=torch.Generator().manual_seed(0))
    gap = [(f(x[:, :, order]) - f(x)[:, :, order]).abs().max() for f in (wrong(), right())]
    return bool(gap[0] > .1 and gap[1] < 1e-5)
