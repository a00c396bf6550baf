"""Relative positions of a speech encoder: the sine of future distances lacks its minus, so left and right look the same. Source: github.com/speechbrain/speechbrain/issues/3070"""
import torch
from torch import nn

expect = ["bias-other", "scores-other", "differs-from-reference"]
words = "the embedding of distance -d equals that of d"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 7, 32)), like=right())

def distances(n, width, signed):
    rate = torch.exp(torch.arange(0, width, 2) * (-torch.log(torch.tensor(10000.0)) / width))
    at = torch.arange(n)[:, None] * rate
    past, future = torch.zeros(n, width), torch.zeros(n, width)
    past[:, ::2], past[:, 1::2] = at.sin(), at.cos()
    future[:, ::2], future[:, 1::2] = (-at if signed else at).sin(), at.cos()
    return torch.cat((past.flip(0), future[1:]))

class RelPosAttention(nn.Module):
    def __init__(self, width, heads, signed):
        super().__init__()
        self.into = nn.Linear(width, 3 * width)
        self.place = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width)
        self.bias_u, self.bias_v = nn.Parameter(torch.randn(heads, 1, width // heads) / 2), nn.Parameter(torch.randn(heads, 1, width // heads) / 2)
        self.h, self.signed = heads, signed

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.into(x).unflatten(-1, (self.h, 3, -1)).permute(3, 0, 2, 1, 4)
        r = self.place(distances(t, c, self.signed)).unflatten(-1, (self.h, -1)).transpose(0, 1)
        by_distance = (q + self.bias_v) @ r.mT
        i = torch.arange(t)
        by_key = by_distance.gather(-1, (t - 1 - i[:, None] + i).expand(b, self.h, t, t))
        p = (((q + self.bias_u) @ k.mT + by_key) * (c // self.h) ** -0.5).softmax(-1)
        return self.out((p @ v).transpose(1, 2).flatten(2))

def wrong():
    torch.manual_seed(1)
    return RelPosAttention(32, 4, False).eval()

def right():
    torch.manual_seed(1)
    return RelPosAttention(32, 4, True).eval()

def proof():
    x = torch.randn(2, 7, 32)
    e = distances(7, 32, False)
    return bool(torch.equal(e, e.flip(0)) and (wrong()(x) - right()(x)).abs().max() > .02)
