"""A multi-head attention for differential privacy views (batch * heads, time, d) as (batch, time, width) when batch_first is set. Source: github.com/meta-pytorch/opacus/pull/825"""
import torch
from torch import nn
import torch.nn.functional as F

expect = ["merged-by-reshape"]
words = "with batch_first the heads are spliced into time positions"


class SeparateMHA(nn.Module):
    """nn.MultiheadAttention out of separate linear layers, which per-sample gradients need."""

    def __init__(self, width, heads, dropout=0.0, batch_first=False):
        super().__init__()
        self.width, self.heads, self.size = width, heads, width // heads
        self.batch_first = batch_first
        self.qlinear = nn.Linear(width, width)
        self.klinear = nn.Linear(width, width)
        self.vlinear = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def split(self, x):
        if self.batch_first:
            b, t, _ = x.shape
            return x.view(b, t, self.heads, self.size).transpose(1, 2).reshape(b * self.heads, t, self.size)
        t, b, _ = x.shape
        return x.contiguous().view(t, b * self.heads, self.size).transpose(0, 1)

    def merge(self, y, b, t):
        if self.batch_first:
            return y.contiguous().view(b, t, self.width)
        return y.transpose(0, 1).contiguous().view(t, b, self.width)

    def forward(self, query, key, value, key_padding_mask=None):
        b, t = query.shape[:2] if self.batch_first else query.shape[1::-1]
        q = self.split(self.qlinear(query) * self.size ** -0.5)
        k, v = self.split(self.klinear(key)), self.split(self.vlinear(value))
        z = torch.bmm(q, k.transpose(1, 2))
        if key_padding_mask is not None:
            z = z.view(b, self.heads, t, -1).masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
            z = z.view(b * self.heads, t, -1)
        w = self.dropout(F.softmax(z, dim=-1))
        y = self.out_proj(self.merge(torch.bmm(w, v), b, t))
        return y, w.view(b, self.heads, t, -1).mean(dim=1)


class SeparateMHAMended(SeparateMHA):
    def merge(self, y, b, t):
        if self.batch_first:
            return y.view(b, self.heads, t, self.size).transpose(1, 2).contiguous().view(b, t, self.width)
        return super().merge(y, b, t)


def asks():
    memory = torch.randn(2, 9, 32)
    return dict(inputs=dict(query=torch.randn(2, 6, 32), key=memory, value=memory))


def wrong():
    torch.manual_seed(0)
    return SeparateMHA(32, 4, batch_first=True).eval()


def right():
    torch.manual_seed(0)
    return SeparateMHAMended(32, 4, batch_first=True).eval()


def proof():
    given = asks()["inputs"]
    bad, good = wrong(), right()
    plain = nn.MultiheadAttention(32, 4, batch_first=True)
    with torch.no_grad():
        plain.in_proj_weight.copy_(torch.cat([m.weight for m in (good.qlinear, good.klinear, good.vlinear)]))
        plain.in_proj_bias.copy_(torch.cat([m.bias for m in (good.qlinear, good.klinear, good.vlinear)]))
        plain.out_proj.load_state_dict(good.out_proj.state_dict())
    reference = plain(**given)[0]
    return torch.allclose(good(**given)[0], reference, atol=1e-5) and not torch.allclose(bad(**given)[0], reference, atol=1e-3)


if __name__ == "__main__":
    print(proof())
