"""Divided attention over time takes the frames themselves as values, where its projection of them is meant. Source: github.com/facebookresearch/Motionformer/pull/6"""
import torch
from torch import nn
import torch.nn.functional as F

expect = ["projection-other", "differs-from-reference"]
words = "v = x in place of v = W x"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 5, 4, 32)), like=right())

class TimeAttention(nn.Module):
    def __init__(self, width, heads, projects):
        super().__init__()
        self.q, self.k, self.v, self.proj = (nn.Linear(width, width) for _ in range(4))
        self.h, self.projects = heads, projects

    def forward(self, x):
        b, frames, patches, c = x.shape
        y = x.transpose(1, 2).flatten(0, 1)
        v = self.v(y) if self.projects else y
        q, k, v = (one.unflatten(-1, (self.h, -1)).transpose(1, 2) for one in (self.q(y), self.k(y), v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.proj(y).unflatten(0, (b, patches)).transpose(1, 2)

def wrong():
    torch.manual_seed(1)
    return TimeAttention(32, 4, False).eval()

def right():
    torch.manual_seed(1)
    return TimeAttention(32, 4, True).eval()

def proof():
    x = asks()["inputs"]["x"]
    return bool((wrong()(x) - right()(x)).abs().max() > .05)
