"""Sinusoidal positions of an image matcher compute -log(10000) / d // 2, which is floored to -1 and not divided by d // 2, so frequencies fall far too fast. Source: github.com/zju3dv/LoFTR/issues/41"""
import math
import torch
import torch.nn as nn

expect = ["differs-from-reference", "projection-other"]
words = "the positions that enter attention have other frequencies than the reference"


class SineGrid(nn.Module):
    def __init__(self, width, side, mended):
        super().__init__()
        half = width // 2
        y, x = torch.ones(side, side).cumsum(0)[None], torch.ones(side, side).cumsum(1)[None]
        step = -math.log(10000.0) / half if mended else -math.log(10000.0) / width // 2
        rate = torch.exp(torch.arange(0, half, 2).float() * step)[:, None, None]
        pe = torch.zeros(width, side, side)
        pe[0::4], pe[1::4] = torch.sin(x * rate), torch.cos(x * rate)
        pe[2::4], pe[3::4] = torch.sin(y * rate), torch.cos(y * rate)
        self.register_buffer("pe", pe[None])

    def forward(self, f):
        return f + self.pe[:, :, : f.size(2), : f.size(3)]


class LinearAttention(nn.Module):
    def forward(self, q, k, v):                             # (n, l, h, d)
        q, k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1
        kv = torch.einsum("nshd,nshv->nhdv", k, v / v.size(1))
        z = 1 / (torch.einsum("nlhd,nhd->nlh", q, k.sum(1)) + 1e-6)
        return torch.einsum("nlhd,nhdv,nlh->nlhv", q, kv, z) * v.size(1)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.merge = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(2 * width, 2 * width, bias=False), nn.ReLU(), nn.Linear(2 * width, width, bias=False))
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = LinearAttention()

    def forward(self, x, source):
        b, t, c = x.shape
        q, k, v = (f(a).view(b, -1, self.heads, c // self.heads) for f, a in ((self.q, x), (self.k, source), (self.v, source)))
        m = self.n1(self.merge(self.attention(q, k, v).reshape(b, t, c)))
        return x + self.n2(self.mlp(torch.cat((x, m), 2)))


class Matcher(nn.Module):
    def __init__(self, mended, width=32, heads=4):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 4, 4)
        self.place = SineGrid(width, 16, mended)
        self.own, self.cross = Layer(width, heads), Layer(width, heads)

    def forward(self, image0, image1):
        a, b = (self.place(self.stem(i)).flatten(2).transpose(1, 2) for i in (image0, image1))
        a, b = self.own(a, a), self.own(b, b)
        a, b = self.cross(a, b), self.cross(b, a)
        s = torch.einsum("nlc,nsc->nls", a, b) / a.shape[-1]
        return s.softmax(1) * s.softmax(2)


def build(mended):
    torch.manual_seed(0)
    return Matcher(mended).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(image0=torch.randn(2, 1, 12, 8), image1=torch.randn(2, 1, 12, 12)), like=right())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a, b = wrong().place.pe, right().place.pe
    return not torch.allclose(a, b, atol=1e-2) and -math.log(10000.0) / 32 // 2 == -1.0
