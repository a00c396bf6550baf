"""The cache is told how many tokens it got by axis 2 of (batch, tokens, heads, width), so it counts heads. Source: github.com/fla-org/flash-linear-attention/issues/126"""
from typing import NamedTuple
import torch
import torch.nn as nn
import torch.nn.functional as F
import intently as it

expect = ["cached-step-differs", "rotation-offset-lost", "rotation-other"]
words = "after a cached prefix of t tokens the next one is rotated as token number h"


class Past(NamedTuple):
    keys: torch.Tensor
    values: torch.Tensor
    seen: int

    def update(self, k, v, offset):
        return Past(torch.cat((self.keys, k), 1), torch.cat((self.values, v), 1), self.seen + offset)


def turn(x, start):
    t, d = x.shape[1], x.shape[-1]
    angle = torch.outer(torch.arange(start, start + t).float(), 10000.0 ** (-torch.arange(0, d, 2) / d))
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class StepAttention(nn.Module):
    def __init__(self, axis, wide=32, heads=2):
        super().__init__()
        self.axis, self.heads = axis, heads
        self.q, self.k, self.v, self.o = (nn.Linear(wide, wide, bias=False) for _ in range(4))

    def forward(self, x, past=None):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1) for f in (self.q, self.k, self.v))
        start = past.seen if past is not None else 0
        q, k = turn(q, start), turn(k, start)
        if past is None:
            past = Past(k, v, q.shape[self.axis])
        else:
            past = past.update(k, v, offset=q.shape[self.axis])
        s = past.keys.shape[1]
        seen = torch.ones(t, s, dtype=torch.bool).tril(s - t)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), past.keys.transpose(1, 2), past.values.transpose(1, 2), attn_mask=seen
        )
        return self.o(y.transpose(1, 2).reshape(b, t, c)), past


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 7, 32)), mask=it.causal())


def make(axis):
    torch.manual_seed(0)
    return StepAttention(axis).eval()


def wrong():
    return make(2)


def right():
    return make(1)


def proof():
    x = asks()["inputs"]["x"]

    def gap(m):
        whole, _ = m(x)
        first, past = m(x[:, :5])
        second, past = m(x[:, 5:6], past)
        third, _ = m(x[:, 6:], past)
        return (torch.cat((first, second, third), 1) - whole).abs().max()

    return bool(gap(wrong()) > 1e-3) and bool(gap(right()) < 1e-5)
