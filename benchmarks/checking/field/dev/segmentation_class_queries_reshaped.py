"""A segmentation decoder lets learned class embeddings attend to pixels: queries are made by a reshape to (batch, heads, classes, width), and heads are merged without a transpose. Source: github.com/xieenze/Trans2Seg/issues/4"""
import torch
from torch import nn

expect = ["split-by-reshape", "merged-by-reshape"]
words = "queries of the classes are reshaped to heads without a transpose, and the heads are put together the same way, while keys and values are split properly"


class ClassAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.fc_q = nn.Linear(dim, dim)
        self.fc_kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)

    def split(self, q):
        b, n, c = q.shape
        return q.reshape(b, self.heads, n, c // self.heads)

    def merge(self, y):
        b, h, n, d = y.shape
        return y.reshape(b, n, h * d)

    def forward(self, classes, pixels):
        b, n, c = pixels.shape
        q = self.split(self.fc_q(classes))
        k, v = self.fc_kv(pixels).reshape(b, n, 2, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * self.scale).softmax(dim=-1)
        return self.proj(self.merge(weights @ v))


class MendedAttention(ClassAttention):
    def split(self, q):
        b, n, c = q.shape
        return q.reshape(b, n, self.heads, c // self.heads).transpose(1, 2)

    def merge(self, y):
        return y.transpose(1, 2).flatten(2)


class Block(nn.Module):
    def __init__(self, attention, dim, heads):
        super().__init__()
        self.norm_classes, self.norm_pixels, self.norm_mlp = (nn.LayerNorm(dim) for _ in range(3))
        self.attention = attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, classes, pixels):
        classes = classes + self.attention(self.norm_classes(classes), self.norm_pixels(pixels))
        return classes + self.mlp(self.norm_mlp(classes))


class Segmenter(nn.Module):
    def __init__(self, attention, channels=12, dim=32, heads=4, classes=5, depth=2):
        super().__init__()
        self.embed = nn.Conv2d(channels, dim, 1)
        self.class_embed = nn.Parameter(torch.randn(1, classes, dim))
        self.blocks = nn.ModuleList(Block(attention, dim, heads) for _ in range(depth))

    def forward(self, features):
        maps = self.embed(features)
        pixels = maps.flatten(2).transpose(1, 2)
        classes = self.class_embed.expand(features.shape[0], -1, -1)
        for block in self.blocks:
            classes = block(classes, pixels)
        return torch.einsum("bkc,bchw->bkhw", classes, maps)


def asks():
    return dict(inputs=dict(features=torch.randn(2, 12, 3, 3)))


def _make(attention):
    torch.manual_seed(0)
    return Segmenter(attention).eval()


def wrong():
    return _make(ClassAttention)


def right():
    return _make(MendedAttention)


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-4)
