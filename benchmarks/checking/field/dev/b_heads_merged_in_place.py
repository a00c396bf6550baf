"""The values of all heads are reshaped to tokens without moving the axis of heads behind the one of tokens. Source: github.com/ajhalthor/Transformer-Neural-Network/issues/8"""
import math
import torch
import torch.nn as nn

expect = ["merged-by-reshape"]
words = "what a head computes for one token is written to another"


def scaled(q, k, v, mask=None):
    z = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        z = z + mask
    share = z.softmax(-1)
    return share @ v, share


class SelfHeads(nn.Module):
    def __init__(self, moved, width=48, heads=4):
        super().__init__()
        self.moved, self.heads, self.size = moved, heads, width // heads
        self.make_qkv = nn.Linear(width, 3 * width)
        self.last = nn.Linear(width, width)

    def forward(self, x, mask=None):
        batch, tokens, width = x.shape
        qkv = self.make_qkv(x).reshape(batch, tokens, self.heads, 3 * self.size).permute(0, 2, 1, 3)
        values, _ = scaled(*qkv.chunk(3, dim=-1), mask)
        if self.moved:
            values = values.permute(0, 2, 1, 3)
        return self.last(values.reshape(batch, tokens, width))


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 6, 48)))


def make(flag):
    torch.manual_seed(0)
    return SelfHeads(flag).eval()


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    x = asks()["inputs"]["x"]
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    moved = (wrong()(x)[:, order] - wrong()(x[:, order])).abs().max() > 1e-3
    return bool(moved) and bool((right()(x)[:, order] - right()(x[:, order])).abs().max() < 1e-5)
