"""Heads come before the batch in the queries, but after it in the repeated mask, so rows meet masks of other texts. Source: github.com/sooftware/attentions/attentions.py"""
import math

import torch
from torch import nn

expect = ['mask-of-other-rows']
words = 'the mask of one text is applied to heads of another'


class Heads(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.part = heads, width // heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def spread(self, hide):
        return hide.unsqueeze(1).repeat(1, self.heads, 1, 1)

    def forward(self, query, key, value, hide=None):
        b = value.size(0)
        lay = lambda z: z.view(b, -1, self.heads, self.part).permute(2, 0, 1, 3).reshape(b * self.heads, -1, self.part)
        q, k, v = lay(self.q(query)), lay(self.k(key)), lay(self.v(value))
        s = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(self.part)
        if hide is not None:
            s.masked_fill_(self.spread(hide).reshape(s.size()), -float('inf'))
        a = s.softmax(-1)
        y = torch.bmm(a, v).view(self.heads, b, -1, self.part)
        return y.permute(1, 2, 0, 3).reshape(b, -1, self.heads * self.part), a


class Mended(Heads):
    def spread(self, hide):
        return hide.unsqueeze(0).repeat(self.heads, 1, 1, 1)


def asks():
    import intently as it
    torch.manual_seed(1)
    n = torch.tensor([7, 4])
    hide = (torch.arange(7)[None] >= n[:, None])[:, None].expand(2, 5, 7)
    x, y = torch.randn(2, 5, 32), torch.randn(2, 7, 32)
    return dict(inputs=dict(query=x, key=y, value=y, hide=hide), mask=it.padding(n))


def wrong(kind=Heads):
    torch.manual_seed(0)
    return kind(32, 4).eval()


def right():
    return wrong(Mended)


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x)[0], right()(**x)[0], atol=1e-3)
