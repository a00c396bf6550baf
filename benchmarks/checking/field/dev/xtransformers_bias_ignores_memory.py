"""With memories in front, the distance bias still counts queries from 0, not from the length of the memory. Source: github.com/lucidrains/x-transformers/pull/103"""
import torch
from einops import rearrange
from torch import nn

expect = ["bias-offset-lost", "bias-other"]
words = "the distance from query i to key j is taken as |j - i| where it is |j - i - m| for m memories"


class DistanceBias(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.register_buffer("slopes", 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads))

    def first(self, i, j):
        return 0

    def forward(self, scores):
        i, j = scores.shape[-2:]
        rows = torch.arange(self.first(i, j), self.first(i, j) + i, device=scores.device)
        apart = torch.arange(j, device=scores.device)[None, :] - rows[:, None]
        return scores - apart.abs() * self.slopes[:, None, None]


class MendedBias(DistanceBias):
    def first(self, i, j):
        return j - i


class MemoryAttention(nn.Module):
    """Causal attention over the segment and hidden states kept from the segment before it."""

    def __init__(self, bias, width=32, heads=4):
        super().__init__()
        self.heads, self.bias = heads, bias(heads)
        self.norm = nn.LayerNorm(width)
        self.to_q, self.to_kv = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.to_out = nn.Linear(width, width)

    def forward(self, x, mem):
        x, mem = self.norm(x), self.norm(mem)
        q = self.to_q(x)
        k, v = self.to_kv(torch.cat((mem, x), dim=-2)).chunk(2, dim=-1)
        q, k, v = (rearrange(z, "b n (h d) -> b h n d", h=self.heads) for z in (q, k, v))
        dots = self.bias(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5)
        i, j = dots.shape[-2:]
        later = torch.ones(i, j, dtype=torch.bool, device=x.device).triu(j - i + 1)
        attn = dots.masked_fill(later, -torch.finfo(dots.dtype).max).softmax(dim=-1)
        return self.to_out(rearrange(attn @ v, "b h n d -> b n (h d)"))


def asks():
    import intently as it

    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 5, 32), mem=torch.randn(2, 4, 32)), mask=it.causal())


def wrong():
    torch.manual_seed(0)
    return MemoryAttention(DistanceBias).eval()


def right():
    torch.manual_seed(0)
    return MemoryAttention(MendedBias).eval()


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-3)
