"""Chunked linear attention sums the keys of its normaliser along heads instead of along the sequence. Source: github.com/fla-org/flash-linear-attention/issues/850"""
import torch
import torch.nn as nn
import torch.nn.functional as F
import intently as it

expect = ["not-normalised"]
words = "the denominator of a causal linear attention is the sum of the keys of other heads, so weights do not sum to 1"


class ChunkedLinear(nn.Module):
    def __init__(self, wide=32, heads=4, chunk=3, over_heads=False):
        super().__init__()
        self.heads, self.chunk, self.over_heads = heads, chunk, over_heads
        self.to_q, self.to_k, self.to_v, self.out = (nn.Linear(wide, wide, bias=False) for _ in range(4))

    def cut(self, x):
        b, t, c = x.shape
        return x.view(b, t // self.chunk, self.chunk, self.heads, c // self.heads).permute(0, 3, 1, 2, 4)

    def forward(self, x):
        length = x.shape[1]
        x = F.pad(x, (0, 0, 0, -length % self.chunk))
        q = self.cut(F.elu(self.to_q(x)) + 1)
        k = self.cut(F.elu(self.to_k(x)) + 1)
        v = self.cut(self.to_v(x))
        state = (k.transpose(-1, -2) @ v).cumsum(2)
        before = torch.cat((torch.zeros_like(state[:, :, :1]), state[:, :, :-1]), 2)
        inside = torch.tril(q @ k.transpose(-1, -2)) @ v
        y = q @ before + inside
        if self.over_heads:
            y = y / (q * k.cumsum(1)).sum(-1, keepdim=True)
            y = y.flatten(2, 3)
        else:
            q, k, y = (u.flatten(2, 3) for u in (q, k, y))
            y = y / (q * k.cumsum(2)).sum(-1, keepdim=True)
        return self.out(y[:, :, :length].transpose(1, 2).flatten(2))


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 9, 32)), mask=it.causal())


def make(flag):
    torch.manual_seed(0)
    return ChunkedLinear(over_heads=flag).eval()


def wrong():
    return make(True)


def right():
    return make(False)


def proof():
    x = asks()["inputs"]["x"]
    m = right()
    q, k, v = (f.view(2, 9, 4, 8).transpose(1, 2) for f in (F.elu(m.to_q(x)) + 1, F.elu(m.to_k(x)) + 1, m.to_v(x)))
    w = torch.tril(q @ k.transpose(-1, -2))
    ref = m.out(((w / w.sum(-1, keepdim=True)) @ v).transpose(1, 2).flatten(2))
    return bool((m(x) - ref).abs().max() < 1e-5) and bool((wrong()(x) - ref).abs().max() > 1e-2)
