"""An encoder of mass spectra makes an additive mask of -inf and then adds the boolean one to its scores. Source: github.com/samgoldman97/mist/issues/17"""
import math

import intently as it
import torch
import torch.nn as nn

expect = ["mask-boolean-added", "padding-attended", "mask-too-weak"]
words = "peaks of padding gain 1 in every score where they should be hidden"


class PeakAttention(nn.Module):
    def __init__(self, width, heads, mended):
        super().__init__()
        self.heads, self.mended = heads, mended
        self.in_weight = nn.Parameter(torch.randn(3 * width, width) / math.sqrt(width))
        self.in_bias = nn.Parameter(torch.zeros(3 * width))
        self.out = nn.Linear(width, width)

    def product(self, q, k, v, hidden=None):
        q = q / math.sqrt(q.shape[-1])
        scores = torch.bmm(q, k.transpose(-2, -1))
        if hidden is not None:
            extra = torch.zeros_like(hidden, dtype=q.dtype)
            extra.masked_fill_(hidden, float("-inf"))
            scores += extra if self.mended else hidden
        return torch.bmm(scores.softmax(-1), v)

    def forward(self, x, key_padding_mask=None):
        t, b, c = x.shape
        q, k, v = nn.functional.linear(x, self.in_weight, self.in_bias).chunk(3, -1)
        q, k, v = (y.reshape(t, b * self.heads, c // self.heads).transpose(0, 1) for y in (q, k, v))
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask.view(b, 1, 1, t).expand(-1, self.heads, -1, -1).reshape(b * self.heads, 1, t)
        y = self.product(q, k, v, key_padding_mask)
        return self.out(y.transpose(0, 1).reshape(t, b, c))


class PeakLayer(nn.Module):
    def __init__(self, width, heads, mended):
        super().__init__()
        self.attention = PeakAttention(width, heads, mended)
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x, pad):
        x = self.n1(x + self.attention(x, pad))
        return self.n2(x + self.feed(x))


class SpectrumEncoder(nn.Module):
    def __init__(self, mended, width=32, heads=4):
        super().__init__()
        self.formula = nn.Linear(11, width)
        self.kind = nn.Embedding(4, width)
        self.layers = nn.ModuleList(PeakLayer(width, heads, mended) for _ in range(2))
        self.bits = nn.Linear(width, 20)

    def forward(self, formulas, kinds, count):
        x = self.formula(formulas) + self.kind(kinds)
        pad = torch.arange(x.shape[1])[None] >= count[:, None]
        x = x.transpose(0, 1)
        for layer in self.layers:
            x = layer(x, pad)
        return torch.sigmoid(self.bits(x[0]))          # the first peak stands for the whole molecule


def build(mended):
    torch.manual_seed(0)
    return SpectrumEncoder(mended).eval()


def asks():
    torch.manual_seed(1)
    count = torch.tensor([8, 5])
    formulas = torch.rand(2, 8, 11)
    kinds = torch.randint(1, 4, (2, 8))
    formulas[1, 5:], kinds[1, 5:] = 0, 0
    return dict(inputs=dict(formulas=formulas, kinds=kinds, count=count), mask=it.padding([8, 5]))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = asks()["inputs"]
    short = dict(formulas=x["formulas"][1:, :5], kinds=x["kinds"][1:, :5], count=x["count"][1:])
    return not torch.allclose(wrong()(**x)[1:], wrong()(**short), atol=1e-4) and torch.allclose(right()(**x)[1:], right()(**short), atol=1e-5)
