"""The bridge from pixels to tokens views (b, c, h, w) as (b, h w, c) instead of transposing it, so a key mixes numbers of many pixels. Source: github.com/ACheun9/Pytorch-implementation-of-Mobile-Former/issues/3"""
import torch
import torch.nn as nn

expect = ["split-by-reshape", "differs-from-reference"]
words = "pixels are made by a view of channel-first memory: keys and values are not pixels"


class MobileToFormer(nn.Module):
    def __init__(self, tokens=24, channels=16, heads=2):
        super().__init__()
        self.heads, self.scale = heads, (channels // heads) ** -0.5
        self.to_q, self.to_out = nn.Linear(tokens, channels), nn.Linear(channels, tokens)

    def pixels(self, x):
        b, c, h, w = x.shape
        return x.contiguous().view(b, h * w, c)

    def forward(self, x, z):
        """x (b, c, h, w) feature map, z (b, m, tokens)"""
        b, c, _, _ = x.shape
        m = z.shape[1]
        split = lambda a: a.view(b, -1, self.heads, c // self.heads).transpose(1, 2)
        q, kv = split(self.to_q(z)), split(self.pixels(x))
        w = (q @ kv.transpose(2, 3) * self.scale).softmax(-1)
        return z + self.to_out((w @ kv).transpose(1, 2).reshape(b, m, c))


class MobileToFormerMended(MobileToFormer):
    def pixels(self, x):
        return x.flatten(2).transpose(1, 2).contiguous()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 16, 3, 3), z=torch.randn(2, 4, 24)), like=right())


def wrong():
    torch.manual_seed(0)
    return MobileToFormer().eval()


def right():
    torch.manual_seed(0)
    return MobileToFormerMended().eval()


def proof():
    i = asks()["inputs"]
    return not torch.allclose(wrong()(**i), right()(**i), atol=1e-5)
