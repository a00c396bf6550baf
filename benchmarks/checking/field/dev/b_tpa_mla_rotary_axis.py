"""Heads come before positions when the rotary module takes axis 1 for the sequence, so it rotates by the number of the head. Source: github.com/tensorgi/TPA/issues/4"""
import torch
from torch import nn
import intently as it

expect = ["rotary-over-heads", "rotation-missing"]
words = "the angle is the same for all positions of a head"


class Rotary(nn.Module):
    def __init__(self, dim, base=10000.0):
        super().__init__()
        self.register_buffer("inv_freq", base ** (-torch.arange(0, dim, 2) / dim))

    def forward(self, x):
        """(b, t, h, d)"""
        angle = torch.outer(torch.arange(x.shape[1]), self.inv_freq)
        cos, sin = angle.cos()[None, :, None], angle.sin()[None, :, None]
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1)


class LatentAttention(nn.Module):
    def __init__(self, dim=32, heads=4, nope=8, rope=4, v=8, rank=12, heads_first=False):
        super().__init__()
        self.heads, self.nope, self.rope, self.v, self.rank = heads, nope, rope, v, rank
        self.heads_first = heads_first
        self.to_q = nn.Linear(dim, heads * (nope + rope), bias=False)
        self.down, self.up = nn.Linear(dim, rank + rope, bias=False), nn.Linear(rank, heads * (nope + v), bias=False)
        self.out, self.rotary = nn.Linear(heads * v, dim, bias=False), Rotary(rope)

    def forward(self, x):
        q = self.to_q(x).unflatten(-1, (self.heads, -1))
        latent, k_pe = self.down(x).split((self.rank, self.rope), -1)
        kv = self.up(latent).unflatten(-1, (self.heads, -1))
        q_nope, q_pe = q.split((self.nope, self.rope), -1)
        k_nope, v = kv.split((self.nope, self.v), -1)
        k_pe = k_pe[:, :, None]
        if self.heads_first:
            q_pe, k_pe = self.rotary(q_pe.transpose(1, 2)), self.rotary(k_pe.transpose(1, 2))
        else:
            q_pe, k_pe = self.rotary(q_pe).transpose(1, 2), self.rotary(k_pe).transpose(1, 2)
        q = torch.cat((q_nope.transpose(1, 2), q_pe), -1)
        k = torch.cat((k_nope.transpose(1, 2), k_pe.expand(-1, self.heads, -1, -1)), -1)
        y = nn.functional.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Published(LatentAttention):
    """The same layer with complex rotations, written for (b, t, h, d) throughout."""

    def forward(self, x):
        t = x.shape[1]
        turn = torch.polar(torch.ones(t, self.rope // 2), -torch.outer(torch.arange(t), self.rotary.inv_freq))
        half = self.rope // 2

        def turned(y):
            z = torch.complex(y[..., :half], y[..., half:]) * turn[:, None]
            return torch.cat((z.real, z.imag), -1)

        q = self.to_q(x).unflatten(-1, (self.heads, -1))
        latent, k_pe = self.down(x).split((self.rank, self.rope), -1)
        k, v = self.up(latent).unflatten(-1, (self.heads, -1)).split((self.nope, self.v), -1)
        q = torch.cat((q[..., :self.nope], turned(q[..., self.nope:].contiguous())), -1)
        k = torch.cat((k, turned(k_pe[:, :, None]).expand(-1, -1, self.heads, -1)), -1)
        z = torch.einsum("bthd,bshd->bhts", q, k) * (self.nope + self.rope) ** -0.5
        z = z.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        return self.out(torch.einsum("bhts,bshd->bthd", z.softmax(-1), v).flatten(2))


def build(kind, **options):
    torch.manual_seed(1)
    return kind(**options).eval()


def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 7, 32)), mask=it.causal(), like=build(Published))


def wrong():
    return build(LatentAttention, heads_first=True)


def right():
    return build(LatentAttention, heads_first=False)


def proof():
    a = asks()
    gap = lambda f: (f(**a["inputs"]) - a["like"](**a["inputs"])).abs().max().item()
    return gap(wrong()) > 1e-3 and gap(right()) < 1e-5
