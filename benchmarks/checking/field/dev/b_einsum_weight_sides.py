"""Weights are created as (out, in), and the einsum of the projections contracts their first axis. Source: github.com/rasbt/LLMs-from-scratch/issues/857"""
import torch
from torch import nn

expect = ["weight-transposed"]
words = "x W for x Wᵀ: square weights hide it"


class MHAEinsum(nn.Module):
    def __init__(self, fixed, width=32, heads=4, context=16):
        super().__init__()
        self.heads = heads
        self.rule = "btc,oc->bto" if fixed else "btc,co->bto"
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(width, width) * width ** -0.5) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.register_buffer("mask", torch.triu(torch.ones(context, context), 1).bool())

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (torch.einsum(self.rule, x, w).view(b, t, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        z = torch.einsum("bhtd,bhsd->bhts", q, k).masked_fill(self.mask[:t, :t], -torch.inf)
        w = torch.softmax(z / k.shape[-1] ** 0.5, -1)
        y = torch.einsum("bhts,bhsd->bhtd", w, v)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 7, 32)), mask=it.causal(), like=right())


def _make(fixed):
    torch.manual_seed(0)
    return MHAEinsum(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    return not torch.allclose(wrong()(**a), right()(**a), atol=1e-2)
