"""Attention of an image encoder works in powers of two, with q scaled by log2(e), and adds its decomposed relative bias without that factor. Source: github.com/meta-pytorch/segment-anything-fast/pull/71"""
import math
import torch
import torch.nn as nn

expect = ["bias-scaled"]
words = "relative positions are weighed by 1 / log2(e), about 0.69"
LOG2E = 1.4426950408889634


def two_softmax(z):
    p = torch.exp2(z - z.amax(-1, keepdim=True))
    return p / p.sum(-1, keepdim=True)


class ImageAttention(nn.Module):
    def __init__(self, width=24, heads=2, side=3):
        super().__init__()
        self.heads, self.side, self.size = heads, side, width // heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rel_h = nn.Parameter(torch.randn(2 * side - 1, self.size))
        self.rel_w = nn.Parameter(torch.randn(2 * side - 1, self.size))

    def bias(self, q):
        n = self.side
        at = torch.arange(n)[:, None] - torch.arange(n)[None] + n - 1
        r = q.unflatten(2, (n, n))
        h = torch.einsum("bnhwc,hkc->bnhwk", r, self.rel_h[at])
        w = torch.einsum("bnhwc,wkc->bnhwk", r, self.rel_w[at])
        return (h[..., :, None] + w[..., None, :]).flatten(4).flatten(2, 3)

    def scores(self, q, k, bias):
        return q * (LOG2E / math.sqrt(self.size)) @ k.mT + bias

    def forward(self, x):
        """x (b, side, side, width)"""
        b = len(x)
        q, k, v = self.qkv(x).reshape(b, -1, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        w = two_softmax(self.scores(q, k, self.bias(q)))
        return self.proj((w @ v).transpose(1, 2).reshape(x.shape))


class ImageAttentionMended(ImageAttention):
    def scores(self, q, k, bias):
        return q * (LOG2E / math.sqrt(self.size)) @ k.mT + bias * LOG2E


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 3, 3, 24)), like=right())


def wrong():
    torch.manual_seed(0)
    return ImageAttention().eval()


def right():
    torch.manual_seed(0)
    return ImageAttentionMended().eval()


def proof():
    x = asks()["inputs"]["x"]
    r = right()
    q, k, v = r.qkv(x).reshape(2, -1, 3, 2, 12).permute(2, 0, 3, 1, 4)
    plain = r.proj((((q @ k.mT / 12 ** 0.5 + r.bias(q)).softmax(-1)) @ v).transpose(1, 2).reshape(x.shape))
    return torch.allclose(r(x), plain, atol=1e-5) and not torch.allclose(wrong()(x), plain, atol=1e-4)
