"""An encoder without causal mask uses the one-sided relative shift of Transformer-XL, so scores for later frames are those of the next query. Source: github.com/ZhengkunTian/OpenTransformer/issues/25"""
import math

import torch
from torch import nn

expect = []
words = "for keys after the query, the position part of the score is taken from the next query and a wrong distance"


def _sinusoids(positions, width):
    rates = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
    angles = positions[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


class RelativeAttention(nn.Module):
    """Self-attention of a Conformer encoder with relative positions and the biases u and v."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.pos = nn.Linear(width, width, bias=False)
        self.u = nn.Parameter(torch.randn(heads, self.head_width) * 0.3)
        self.v = nn.Parameter(torch.randn(heads, self.head_width) * 0.3)
        self.out = nn.Linear(width, width)

    def distances(self, t):
        return torch.arange(t - 1, -1, -1).float()

    def shift(self, s):
        b, h, t, n = s.shape
        s = torch.cat((s.new_zeros(b, h, t, 1), s), dim=-1).view(b, h, n + 1, t)
        return s[:, :, 1:].reshape(b, h, t, n)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, self.head_width) for z in self.qkv(x).chunk(3, dim=-1))
        r = self.pos(_sinusoids(self.distances(t), c)).view(-1, self.heads, self.head_width)
        content = torch.einsum("bthd,bshd->bhts", q + self.u, k)
        position = self.shift(torch.einsum("bthd,nhd->bhtn", q + self.v, r))
        w = ((content + position) / math.sqrt(self.head_width)).softmax(-1)
        return self.out(torch.einsum("bhts,bshd->bthd", w, v).reshape(b, t, c))


class Mended(RelativeAttention):
    def distances(self, t):
        return torch.arange(t - 1, -t, -1).float()

    def shift(self, s):
        t = s.shape[2]
        return super().shift(s)[..., :t]


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 7, 32)))


def wrong():
    torch.manual_seed(0)
    return RelativeAttention().eval()


def right():
    torch.manual_seed(0)
    return Mended().eval()


def proof():
    x = asks()["inputs"]["x"]
    m = right()
    # the mended shift puts distance i - j at (i, j)
    t = 5
    ramp = m.distances(t).expand(1, 1, t, -1)
    i, j = torch.arange(t)[:, None], torch.arange(t)[None]
    ok = torch.equal(m.shift(ramp)[0, 0], (i - j).float())
    return ok and not torch.allclose(wrong()(x), m(x), atol=1e-3)
