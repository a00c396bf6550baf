"""Rotary encoding repeats its angles half by half and concatenates odd and even numbers, while the numbers themselves stay interleaved: no pair is rotated. Source: github.com/Tongjilibo/bert4torch/issues/1"""
import torch
import torch.nn as nn
import intently as it

expect = ["rotation-other", "rotary-pairs"]
words = "x * cos + x2 * sin mixes two conventions: number n is combined with another pair's number and angle"


class Rope(nn.Module):
    def __init__(self, size, longest=32):
        super().__init__()
        rate = 10000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.arange(longest)[:, None] * rate
        self.register_buffer("cos", self.spread(angles.cos()))
        self.register_buffer("sin", self.spread(angles.sin()))

    def spread(self, a):
        return a.repeat(1, 2)

    def partner(self, x):
        return torch.cat([-x[..., 1::2], x[..., ::2]], -1)

    def forward(self, x):
        t = x.shape[-2]
        return x * self.cos[:t] + self.partner(x) * self.sin[:t]


class RopeMended(Rope):
    def spread(self, a):
        return a.repeat_interleave(2, -1)

    def partner(self, x):
        return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


class RoFormerLayer(nn.Module):
    def __init__(self, rope, width=32, heads=2):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.rope = rope(self.size)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, hidden, attention_mask):
        split = lambda a: a.unflatten(-1, (self.heads, self.size)).transpose(1, 2)
        q, k, v = split(self.q(hidden)), split(self.k(hidden)), split(self.v(hidden))
        z = self.rope(q) @ self.rope(k).mT / self.size ** 0.5
        z = z + (1.0 - attention_mask[:, None, None].float()) * -10000.0
        y = (z.softmax(-1) @ v).transpose(1, 2).flatten(2)
        hidden = self.first(hidden + self.o(y))
        return self.second(hidden + self.down(torch.relu(self.up(hidden))))


def asks():
    torch.manual_seed(1)
    lengths = torch.tensor([8, 6])
    real = torch.arange(8)[None] < lengths[:, None]
    return dict(inputs=dict(hidden=torch.randn(2, 8, 32), attention_mask=real.long()), mask=it.padding(lengths), like=right())


def wrong():
    torch.manual_seed(0)
    return RoFormerLayer(Rope).eval()


def right():
    torch.manual_seed(0)
    return RoFormerLayer(RopeMended).eval()


def proof():
    q, k = torch.randn(1, 16), torch.randn(1, 16)
    at = lambda rope: (rope(q.expand(9, 16)) @ rope(k.expand(9, 16)).T)
    w, r = at(Rope(16)), at(RopeMended(16))
    return torch.allclose(r[3, 1], r[7, 5], atol=1e-4) and not torch.allclose(w[3, 1], w[7, 5], atol=1e-3)
