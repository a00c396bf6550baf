"""Multi-query attention over the pixels of a map neither scales its products nor turns (pixels, channels) back before it reshapes them to a map. Source: github.com/huggingface/pytorch-image-models/pull/2388"""
import torch
import torch.nn as nn

expect = ["no-scale", "merged-by-reshape", "output-reordered"]
words = "scores are q·k without 1/sqrt(d); the result (batch, pixels, channels) is viewed as (batch, channels, height, width)"


class PixelQueries(nn.Module):
    def __init__(self, dim, dim_out, heads, key_dim, value_dim, mended):
        super().__init__()
        self.mended, self.key_dim = mended, key_dim
        self.query = nn.Parameter(torch.randn(heads, key_dim, dim) * dim ** -0.5)
        self.key = nn.Parameter(torch.randn(dim, key_dim) * dim ** -0.5)
        self.value = nn.Parameter(torch.randn(dim, value_dim) * dim ** -0.5)
        self.out = nn.Parameter(torch.randn(dim_out, heads, value_dim) * (heads * value_dim) ** -0.5)

    def forward(self, x, m=None):
        b, _, h, w = x.shape
        m = x if m is None else m
        x, m = x.flatten(2).transpose(1, 2), m.flatten(2).transpose(1, 2)
        q = torch.einsum("bnd,hkd->bnhk", x, self.query)
        k = torch.einsum("bmd,dk->bmk", m, self.key)
        scores = torch.einsum("bnhk,bmk->bnhm", q, k)
        if self.mended:
            scores = scores * self.key_dim ** -0.5
        weights = scores.softmax(-1)
        v = torch.einsum("bmd,dv->bmv", m, self.value)
        y = torch.einsum("bnhm,bmv->bnhv", weights, v)
        y = torch.einsum("bnhv,dhv->bnd", y, self.out)
        if self.mended:
            y = y.transpose(1, 2)
        return y.reshape(b, -1, h, w)


class MobileBlock(nn.Module):
    def __init__(self, width, mended):
        super().__init__()
        self.norm = nn.BatchNorm2d(width)
        self.attention = PixelQueries(width, width, 4, 8, 8, mended)
        self.gain = nn.Parameter(torch.full((1, width, 1, 1), 0.7))

    def forward(self, x):
        return x + self.gain * self.attention(self.norm(x))


class MobileNet(nn.Module):
    def __init__(self, mended, width=24, classes=5):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.Hardswish())
        self.blocks = nn.Sequential(MobileBlock(width, mended), nn.Conv2d(width, width, 1), nn.ReLU(), MobileBlock(width, mended))
        self.classes = nn.Linear(width, classes)

    def forward(self, image):
        return self.classes(self.blocks(self.stem(image)).amax((2, 3)))


def build(mended):
    torch.manual_seed(0)
    return MobileNet(mended).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(image=torch.randn(2, 3, 6, 6)))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-3)
