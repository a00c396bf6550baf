"""Spatial attention of a video autoencoder folds (b, c, t, h, w) into (b t, c, h w) without moving the frames before the channels. Source: github.com/PKU-YuanGroup/Open-Sora-Plan/issues/171"""
import torch
from torch import nn

expect = ["split-by-reshape", "merged-by-reshape"]
words = "a reshape without a permute: what stands in for one frame's channels comes from several frames"


class FrameAttention(nn.Module):
    def __init__(self, channels, slip):
        super().__init__()
        self.slip = slip
        self.norm = nn.GroupNorm(4, channels)
        self.q = nn.Conv3d(channels, channels, 1)
        self.k = nn.Conv3d(channels, channels, 1)
        self.v = nn.Conv3d(channels, channels, 1)
        self.proj_out = nn.Conv3d(channels, channels, 1)

    def fold(self, x):
        b, c, t, h, w = x.shape
        if not self.slip:
            x = x.transpose(1, 2)
        return x.reshape(b * t, c, h * w)

    def unfold(self, x, shape):
        b, c, t, h, w = shape
        if self.slip:
            return x.reshape(shape)
        return x.reshape(b, t, c, h, w).transpose(1, 2)

    def forward(self, x):
        n = self.norm(x)
        q, k, v = (self.fold(f(n)) for f in (self.q, self.k, self.v))
        weights = torch.bmm(q.transpose(1, 2), k).mul(x.shape[1] ** -0.5).softmax(2)
        y = torch.bmm(v, weights.transpose(1, 2))
        return x + self.proj_out(self.unfold(y, x.shape))


def make(slip):
    torch.manual_seed(2)
    return FrameAttention(16, slip).eval()


def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 16, 3, 2, 3)))


def wrong(): return make(True)
def right(): return make(False)


def proof():
    x = asks()["inputs"]["x"]
    return not torch.allclose(wrong()(x), right()(x), atol=1e-3)
