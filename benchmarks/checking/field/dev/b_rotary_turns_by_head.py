"""A rotary module takes axis -2 for the sequence while queries and keys are (batch, tokens, heads, width). Source: github.com/facebookresearch/xformers/issues/841"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["rotary-over-heads"]
words = "the angle grows with the number of the head; all positions of a head have the same"


class Rotary(nn.Module):
    def __init__(self, d, axis):
        super().__init__()
        self.axis = axis
        self.register_buffer("speed", 10000.0 ** (-torch.arange(0, d, 2) / d))

    def tables(self, x):
        angle = torch.outer(torch.arange(x.shape[self.axis], dtype=x.dtype), self.speed)
        angle = torch.cat((angle, angle), -1)
        if self.axis == 1:
            angle = angle[:, None]
        return angle.cos(), angle.sin()

    def turn(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def forward(self, q, k):
        cos, sin = self.tables(k)
        return self.turn(q, cos, sin), self.turn(k, cos, sin)


class Block(nn.Module):
    def __init__(self, axis, wide=48, heads=3):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(wide, 3 * wide)
        self.out = nn.Linear(wide, wide)
        self.rotary = Rotary(wide // heads, axis)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).unbind(2)
        q, k = self.rotary(q, k)
        w = F.softmax(torch.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5, -1)
        return self.out(torch.einsum("bhts,bshd->bthd", w, v).reshape(b, t, c))


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 7, 48)))


def make(axis):
    torch.manual_seed(0)
    return Block(axis).eval()


def wrong():
    return make(-2)


def right():
    return make(1)


def proof():
    x = asks()["inputs"]["x"]
    order = torch.randperm(7, generator=torch.Generator().manual_seed(2))
    same = (wrong()(x)[:, order] - wrong()(x[:, order])).abs().max() < 1e-5
    return bool(same) and bool((right()(x)[:, order] - right()(x[:, order])).abs().max() > 1e-3)
