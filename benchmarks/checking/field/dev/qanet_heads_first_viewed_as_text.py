"""Self-attention writes its heads into a tensor (h, b, t, d) and views it as (b, t, h d). Source: github.com/hackiey/QAnet-pytorch/issues/2"""
import torch
from torch import nn

expect = ["merged-by-reshape", "batch-mixed"]
words = "a token's row holds numbers of other tokens and other texts"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 7, 32)))

class LoopedHeads(nn.Module):
    def __init__(self, width, heads, permuted):
        super().__init__()
        size = width // heads
        self.wq, self.wk, self.wv = (nn.ParameterList(torch.randn(width, size) / width ** .5 for _ in range(heads)) for _ in range(3))
        self.wo = nn.Parameter(torch.randn(width, width) / width ** .5)
        self.permuted = permuted

    def forward(self, x):
        b, t, c = x.shape
        done = []
        for wq, wk, wv in zip(self.wq, self.wk, self.wv):
            z = (x @ wq) @ (x @ wk).transpose(1, 2) / wk.shape[1] ** .5
            done.append(torch.softmax(z, dim=2) @ (x @ wv))
        heads = torch.stack(done)
        if self.permuted:
            heads = heads.permute(1, 2, 0, 3).contiguous()
        return heads.view(b, t, c) @ self.wo

def wrong():
    torch.manual_seed(1)
    return LoopedHeads(32, 4, False).eval()

def right():
    torch.manual_seed(1)
    return LoopedHeads(32, 4, True).eval()

def proof():
    x = asks()["inputs"]["x"]
    gap = [(f(x[:1]) - f(x)[:1]).abs().max() for f in (wrong(), right())]
    return bool(gap[0] > .1 and gap[1] < 1e-5)
