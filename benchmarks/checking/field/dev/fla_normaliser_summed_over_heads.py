"""Causal linear attention divides by the keys summed along the axis of heads instead of time. Source: github.com/fla-org/flash-linear-attention/pull/594"""
import torch
from torch import nn
import torch.nn.functional as F
import intently as it

expect = ["not-normalised"]
words = "cumsum(-2) of keys (b, t, h, d) runs over heads: head n of a query is divided by its product with keys of heads 0..n at the same time"


def divide(q, k, o, axis):
    total = k.cumsum(axis)
    return o / ((q * total).sum(-1, keepdim=True) + 1e-10)


class CausalLinearAttention(nn.Module):
    def __init__(self, axis, width=32, heads=4):
        super().__init__()
        self.axis, self.heads = axis, heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p(x).view(b, t, self.heads, -1) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.einsum("bthk,bthv->bthkv", k, v).cumsum(1)
        o = torch.einsum("bthk,bthkv->bthv", q, state)
        return self.o_proj(divide(q, k, o, self.axis).reshape(b, t, c))


def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 8, 32)), mask=it.causal())


def make(axis):
    torch.manual_seed(9)
    return CausalLinearAttention(axis).eval()


def wrong():
    return make(-2)


def right():
    return make(1)


@torch.no_grad()
def proof():
    def constant(f):   # equal values must pass through unchanged: v of ones, no output projection
        f = f()
        f.v_proj = nn.Linear(32, 32)
        nn.init.zeros_(f.v_proj.weight), nn.init.ones_(f.v_proj.bias)
        f.o_proj = nn.Identity()
        return float((f(asks()["inputs"]["x"]) - 1).abs().max())
    return constant(wrong) > 0.1 and constant(right) < 1e-4
