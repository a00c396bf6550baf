"""Results (b, h, t, d) are reshaped to (b, t, h * d) without moving heads back, which mixes positions. Source: github.com/andyluken/transformers/Multihead _Attention.py"""
import math, torch
from torch import nn
expect = ["merged-by-reshape"]
words = "reshape in place of transpose and reshape when heads are merged"
class FusedHeads(nn.Module):
    def __init__(self, c_in, c, h, back):
        super().__init__()
        self.h, self.d, self.back = h, c // h, back
        self.qkv, self.last = nn.Linear(c_in, 3 * c), nn.Linear(c, c)
    def forward(self, x, mask=None):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, t, self.h, 3 * self.d).permute(0, 2, 1, 3).chunk(3, -1)
        z = q @ k.transpose(-1, -2) / math.sqrt(self.d)
        if mask is not None: z = z + mask
        o = z.softmax(-1) @ v
        if self.back: o = o.permute(0, 2, 1, 3)
        return self.last(o.reshape(b, t, self.h * self.d))
def asks(): return dict(inputs=dict(x=torch.randn(2, 6, 48, generator=torch.Generator().manual_seed(0))))
def _make(b): torch.manual_seed(0); return FusedHeads(48, 32, 4, b).eval()
def wrong(): return _make(False)
def right(): return _make(True)
def proof(): a = asks()["inputs"]; return bool((wrong()(**a) - right()(**a)).abs().max() > 1e-2)
