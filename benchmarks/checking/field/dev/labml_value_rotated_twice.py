"""Values are rotated twice and turned back once, in an attention that means relative positions of values. Source: github.com/labmlai/annotated_deep_learning_paper_implementations/issues/251"""
import math

import torch
from torch import nn

expect = ["values-rotated"]
words = "values carry a rotation by their absolute position into the output"


class Turn(nn.Module):
    """Rotary embedding of (time, batch, head, width) by halves; sign -1 turns back."""

    def __init__(self, width, sign=1.0):
        super().__init__()
        self.sign = sign
        self.register_buffer("rates", 10000 ** (-torch.arange(0, width, 2).float() / width))

    def forward(self, x):
        angles = torch.arange(x.shape[0]).float()[:, None] * self.rates * self.sign
        cos, sin = angles.cos()[:, None, None], angles.sin()[:, None, None]
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class RelativeValues(nn.Module):
    """Time-first self-attention with rotary queries and keys, and values in relative position."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.part = heads, width // heads
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.output = nn.Linear(width, width)
        self.turn_q, self.turn_k, self.turn_v = (Turn(self.part) for _ in range(3))
        self.back = Turn(self.part, sign=-1.0)

    def placed(self, v):
        return self.turn_v(self.turn_v(v))

    def forward(self, x):
        t, b, c = x.shape
        q, k, v = (f(x).view(t, b, self.heads, self.part) for f in (self.query, self.key, self.value))
        scores = torch.einsum("ibhd,jbhd->ijbh", self.turn_q(q), self.turn_k(k)) / math.sqrt(self.part)
        later = torch.ones(t, t, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later[:, :, None, None], float("-inf"))
        y = torch.einsum("ijbh,jbhd->ibhd", scores.softmax(dim=1), self.placed(v))
        return self.output(self.back(y).reshape(t, b, c))


class Mended(RelativeValues):
    def placed(self, v):
        return self.turn_v(v)


def asks():
    import intently as it

    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(7, 2, 32)), mask=it.causal(), layout="t b c")


def wrong():
    torch.manual_seed(0)
    return RelativeValues().eval()


def right():
    torch.manual_seed(0)
    return Mended().eval()


def proof():
    x = asks()["inputs"]["x"]
    return not torch.allclose(wrong()(x), right()(x), atol=1e-3)
