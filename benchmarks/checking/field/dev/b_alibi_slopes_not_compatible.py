"""Slopes for a number of heads that is no power of two are one plain series, other than those of the reference. Source: github.com/mosaicml/examples/pull/307"""
import math
import torch
import torch.nn as nn
import intently as it

expect = ["bias-slopes", "differs-from-reference"]
words = "with 3 heads the slopes of ALiBi are not those of the reference, which takes them from the series for 4"


def slopes_plain(n):
    return 2.0 ** -(torch.arange(1, n + 1) * 8 / n)


def slopes_compatible(n):
    full = 2 ** math.ceil(math.log2(n))
    s = 2.0 ** -(torch.arange(1, full + 1) * 8 / full)
    return s if full == n else torch.cat((s[1::2], s[::2]))[:n]


class AlibiAttention(nn.Module):
    def __init__(self, slopes, wide=48, heads=3):
        super().__init__()
        self.heads = heads
        self.packed = nn.Linear(wide, 3 * wide, bias=False)
        self.out = nn.Linear(wide, wide, bias=False)
        self.register_buffer("slopes", slopes(heads))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.packed(x).chunk(3, -1))
        at = torch.arange(t)
        bias = self.slopes[:, None, None] * (at[None] - at[:, None])
        z = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
        z = z.masked_fill(at[None] > at[:, None], -torch.inf)
        return self.out((z.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 8, 48)), mask=it.causal(), like=right())


def make(slopes):
    torch.manual_seed(0)
    return AlibiAttention(slopes).eval()


def wrong():
    return make(slopes_plain)


def right():
    return make(slopes_compatible)


def proof():
    x = asks()["inputs"]["x"]
    return bool((wrong()(x) - right()(x)).abs().max() > 1e-3)
