"""Attention maps are flattened from the heads on, so one softmax runs over all heads and pixels together. Source: github.com/facebookresearch/detr/issues/247"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["not-normalised", "softmax-over-heads"]
words = "the weights of all heads together sum to 1 in place of those of each head"


class ObjectMaps(nn.Module):
    """Where each object looks in the image: one map for each head, and what it sees there."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.factor = heads, (width // heads) ** -0.5
        self.q_linear, self.k_conv, self.v_conv = nn.Linear(width, width), nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.out = nn.Linear(width, width)

    first = 2

    def forward(self, objects, image, hidden):
        b, n, c = objects.shape
        q = self.q_linear(objects).view(b, n, self.heads, c // self.heads)
        k, v = (f(image).view(b, self.heads, c // self.heads, *image.shape[-2:]) for f in (self.k_conv, self.v_conv))
        z = torch.einsum("bqnc,bnchw->bqnhw", q * self.factor, k)
        z = z.masked_fill(hidden[:, None, None], float("-inf"))
        maps = F.softmax(z.flatten(self.first), dim=-1).view(z.size())
        seen = torch.einsum("bqnhw,bnchw->bqnc", maps, v).flatten(2)
        return self.out(seen), maps


class Mended(ObjectMaps):
    first = 3


def asks():
    torch.manual_seed(1)
    hidden = torch.zeros(2, 3, 4, dtype=torch.bool)
    hidden[1, :, 3:] = True
    import intently as it

    x = dict(objects=torch.randn(2, 5, 32), image=torch.randn(2, 32, 3, 4), hidden=hidden)
    return dict(inputs=x, mask=it.padding(~hidden.flatten(1)))


def wrong():
    torch.manual_seed(0)
    return ObjectMaps().eval()


def right():
    torch.manual_seed(0)
    return Mended().eval()


def proof():
    x = asks()["inputs"]
    a, b = wrong()(**x)[1], right()(**x)[1]
    return torch.allclose(a.sum((2, 3, 4)), torch.ones(2, 5)) and torch.allclose(b.sum((3, 4)), torch.ones(2, 5, 4))
