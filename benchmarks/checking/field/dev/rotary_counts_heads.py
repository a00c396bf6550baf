"""A rotary module for (b, t, h, d) is given (b, h, t, d): the angles grow with the head, all positions of a head have the same. Source: github.com/vukrosic/leo-optimizer/pull/2"""
import intently as it
import torch
import torch.nn.functional as F
from torch import nn

expect = ["rotary-over-heads", "rotation-missing"]
words = "the third axis from the end is heads; scores do not depend on positions"


def asks():
    return dict(inputs=dict(x=torch.randn(2, 7, 32)), mask=it.causal())


class Rotary(nn.Module):
    """Half of the frequencies, the other half of each head stands still. (b, t, h, d) comes in."""

    def __init__(self, width, longest=64):
        super().__init__()
        quarter = width // 4
        frequency = torch.cat((1e-3 ** torch.linspace(0, 1, quarter), torch.zeros(quarter)))
        angle = torch.outer(torch.arange(longest).float(), frequency)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, bthd):
        n = bthd.size(-3)
        cos, sin = self.cos[:n].unsqueeze(1), self.sin[:n].unsqueeze(1)
        low, high = bthd.chunk(2, -1)
        return torch.cat((low * cos + high * sin, high * cos - low * sin), -1)


class CausalAttention(nn.Module):
    def __init__(self, width, heads, positions_first):
        super().__init__()
        self.heads, self.positions_first = heads, positions_first
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.rotary = Rotary(width // heads)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.positions_first:
            q, k = (self.rotary(u.transpose(1, 2)).transpose(1, 2) for u in (q, k))
        else:
            q, k = self.rotary(q), self.rotary(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


def make(positions_first):
    torch.manual_seed(0)
    return CausalAttention(32, 4, positions_first).eval()


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    x = torch.randn(2, 7, 32)
    other = x[:, [2, 0, 1, 3, 4, 5, 6]]                 # without positions, the last row sees a set
    same = [(m(x) - m(other))[:, -1].abs().max().item() for m in (wrong(), right())]
    return same[0] < 1e-5 and same[1] > 1e-3
