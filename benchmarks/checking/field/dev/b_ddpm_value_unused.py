"""The self-attention of a diffusion UNet weighs its raw input; the projected value is never used. Source: github.com/hmdolatabadi/denoising_diffusion/issues/1"""
import math

import torch
from torch import nn

expect = ["projection-other", "differs-from-reference"]
words = "weights times the un-normalised, unprojected input where weights times value is meant"


class SpatialAttention(nn.Module):
    def __init__(self, fixed, channels=32):
        super().__init__()
        self.fixed = fixed
        self.norm = nn.GroupNorm(8, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, image):
        b, c, h, w = image.shape
        query, key, value = self.qkv(self.norm(image)).chunk(3, 1)
        z = torch.einsum("bcij,bckl->bijkl", query, key) / math.sqrt(c)
        weights = z.flatten(3).softmax(-1).view(b, h, w, h, w)
        y = torch.einsum("bijkl,bckl->bcij", weights, value if self.fixed else image)
        return self.out(y) + image


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(image=torch.randn(2, 32, 3, 4)), like=right())


def _make(fixed):
    torch.manual_seed(0)
    return SpatialAttention(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    """A third of the fused projection has no effect."""
    x = asks()["inputs"]["image"]
    moved = []
    for m in (wrong(), right()):
        before = m(x)
        with torch.no_grad():
            m.qkv.weight[64:] += 1
        moved.append(not torch.allclose(m(x), before))
    return moved == [False, True]
