"""Rotary angles run along axis -2 of (batch, time, head, width), which is the heads. Source: github.com/mlfoundations/open_lm/issues/4"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["rotary-over-heads"]
words = "queries and keys are rotated by the number of their head, not by their position"


def _half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class Rotary(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / (10000 ** (torch.arange(0, width, 2).float() / width)))

    def forward(self, q, k):
        n = k.shape[-2]
        angles = torch.outer(torch.arange(n, device=k.device).float(), self.inv_freq)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos()[None, None], angles.sin()[None, None]
        return q * cos + _half(q) * sin, k * cos + _half(k) * sin


class SelfAttention(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.in_proj = nn.Linear(width, 3 * width, bias=False)
        self.out_proj = nn.Linear(width, width, bias=False)
        self.rotary = Rotary(self.head_width)

    def rotated(self, q, k):
        return self.rotary(q, k)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q, k, v = (z.view(b, t, self.heads, self.head_width) for z in (q, k, v))
        q, k = self.rotated(q, k)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.out_proj(y.transpose(1, 2).reshape(b, t, c))


class Mended(SelfAttention):
    def rotated(self, q, k):
        q, k = self.rotary(q.permute(0, 2, 1, 3), k.permute(0, 2, 1, 3))
        return q.permute(0, 2, 1, 3), k.permute(0, 2, 1, 3)


def asks():
    import intently as it

    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 7, 32)), mask=it.causal())


def wrong():
    torch.manual_seed(0)
    return SelfAttention().eval()


def right():
    torch.manual_seed(0)
    return Mended().eval()


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-3)
