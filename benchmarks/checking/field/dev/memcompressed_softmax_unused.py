"""The softmax is computed, and the raw scores are used as weights. Source: github.com/lucidrains/memory-compressed-attention/issues/2"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["not-normalised"]
words = "weights are the scores themselves: the result of the softmax is not used"


class CompressedAttention(nn.Module):
    """Keys and values are shortened by a strided convolution; a null key goes first."""

    def __init__(self, width=32, heads=4, ratio=3, dropout=0.0):
        super().__init__()
        self.heads, self.ratio = heads, ratio
        self.shorten = nn.Conv1d(width, width, ratio, stride=ratio, groups=heads)
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)
        self.to_out = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)
        self.null_k, self.null_v = (nn.Parameter(torch.randn(1, 1, width) * 0.1) for _ in range(2))

    def weights(self, dots):
        attn = dots.softmax(dim=-1)
        attn = self.drop(dots)
        return attn

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        missing = -t % self.ratio
        k, v = (F.pad(z, (0, 0, missing, 0)) for z in (k, v))
        k, v = (self.shorten(z.transpose(1, 2)).transpose(1, 2) for z in (k, v))
        k = torch.cat((self.null_k.expand(b, -1, -1), k), dim=1)
        v = torch.cat((self.null_v.expand(b, -1, -1), v), dim=1)
        q, k, v = (z.reshape(b, z.shape[1], self.heads, -1).transpose(1, 2) for z in (q, k, v))
        dots = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        y = torch.einsum("bhij,bhjd->bhid", self.weights(dots), v)
        return self.to_out(y.transpose(1, 2).reshape(b, t, c))


class Mended(CompressedAttention):
    def weights(self, dots):
        return self.drop(dots.softmax(dim=-1))


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 9, 32)))


def wrong():
    torch.manual_seed(0)
    return CompressedAttention().eval()


def right():
    torch.manual_seed(0)
    return Mended().eval()


def proof():
    x = asks()["inputs"]["x"]
    return not torch.allclose(wrong()(x), right()(x), atol=1e-3)
