"""The output (batch, head, pixel, width) is reshaped to (batch, head, width, row, column) without a transpose. Source: github.com/leaderj1001/Attention-Augmented-Conv2d/issues/21"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["merged-by-reshape"]
words = "channels of one pixel are written to other pixels"


class AugmentedConv(nn.Module):
    """Some channels come from a convolution, the others from attention over all pixels."""

    def __init__(self, c_in=12, c_out=24, dk=16, dv=8, heads=2):
        super().__init__()
        self.dk, self.dv, self.heads = dk, dv, heads
        self.conv = nn.Conv2d(c_in, c_out - dv, 3, padding=1)
        self.qkv = nn.Conv2d(c_in, 2 * dk + dv, 1)
        self.mix = nn.Conv2d(dv, dv, 1)

    def pixels(self, x):
        b, c, h, w = x.shape
        return x.reshape(b, self.heads, c // self.heads, h * w)

    def images(self, y, h, w):
        b, n, _, d = y.shape
        return torch.reshape(y, (b, n, d, h, w))

    def forward(self, x):
        b, _, h, w = x.shape
        q, k, v = map(self.pixels, torch.split(self.qkv(x), [self.dk, self.dk, self.dv], dim=1))
        q = q * (self.dk // self.heads) ** -0.5
        weights = F.softmax(torch.matmul(q.transpose(2, 3), k), dim=-1)
        y = torch.matmul(weights, v.transpose(2, 3))
        y = self.images(y, h, w).reshape(b, self.dv, h, w)
        return torch.cat((self.conv(x), self.mix(y)), dim=1)


class Mended(AugmentedConv):
    def images(self, y, h, w):
        b, n, _, d = y.shape
        return torch.reshape(y.permute(0, 1, 3, 2), (b, n, d, h, w))


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 12, 3, 4)))


def wrong():
    torch.manual_seed(0)
    return AugmentedConv().eval()


def right():
    torch.manual_seed(0)
    return Mended().eval()


def proof():
    x = asks()["inputs"]["x"]
    return not torch.allclose(wrong()(x), right()(x), atol=1e-3)
