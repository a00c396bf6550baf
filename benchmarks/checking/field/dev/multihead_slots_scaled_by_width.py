"""Slots of several heads are scaled by the width of the model instead of a head's. Source: github.com/lucidrains/slot-attention/slot_attention/multi_head_slot_attention.py"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ['scale-model-width']
words = 'scores of one head are divided by sqrt of the whole width'


class Slots(nn.Module):
    """One round of slot attention with several heads; slots are given."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.scale = self.choose(width)
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.join = nn.Linear(width, width)

    def choose(self, width):
        return width ** -0.5

    def forward(self, slots, inputs):
        cut = lambda z: z.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q, k, v = cut(self.to_q(slots)), cut(self.to_k(inputs)), cut(self.to_v(inputs))
        a = (torch.einsum('bhid,bhjd->bhij', q, k) * self.scale).softmax(dim=-2)
        a = F.normalize(a + 1e-8, p=1, dim=-1)
        return self.join((a @ v).transpose(1, 2).flatten(2))


class Mended(Slots):
    def choose(self, width):
        return (width // self.heads) ** -0.5


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(slots=torch.randn(2, 4, 32), inputs=torch.randn(2, 9, 32)))


def wrong(kind=Slots):
    torch.manual_seed(0)
    return kind(32, 4).eval()


def right():
    return wrong(Mended)


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-4)
