"""A translation decoder builds a cross-attention and calls the self-attention a second time with the source: one set of projections serves both. Source: github.com/zomux/lanmt/pull/11"""
import torch
from torch import nn

expect = []
words = "the cross-attention's parameters are never used; queries, keys and values of the source come from the projections of self-attention"


def asks():
    x_mask, y_mask = torch.ones(2, 5), torch.ones(2, 7)
    x_mask[1, 4:], y_mask[0, 5:] = 0, 0
    return dict(inputs=dict(x=torch.randn(2, 5, 32), x_mask=x_mask, y=torch.randn(2, 7, 32), y_mask=y_mask))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, query, keys, values, mask):
        q, k, v = (f(a).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for f, a in ((self.query, query), (self.key, keys), (self.value, values)))
        logits = q @ k.mT * q.shape[-1] ** -0.5
        logits = logits.masked_fill(mask[:, None, None] == 0, -1e30)
        w = logits.softmax(-1)
        return self.output((w @ v).transpose(1, 2).flatten(2)), w


class CrossLayer(nn.Module):
    """Not autoregressive: every target position sees all others."""

    def __init__(self, width, heads, use_cross):
        super().__init__()
        self.use_cross = use_cross
        self.attention, self.cross_attention = Attention(width, heads), Attention(width, heads)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x, x_mask, y, y_mask):
        h = self.norm1(x)
        h, _ = self.attention(h, h, h, mask=x_mask)
        x = x + h
        h = self.norm2(x)
        read = self.cross_attention if self.use_cross else self.attention
        h, _ = read(h, y, y, mask=y_mask)
        x = x + h
        return x + self.feed(self.norm3(x))


def make(use_cross):
    torch.manual_seed(12)
    return CrossLayer(32, 4, use_cross).eval()


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    call = asks()["inputs"]
    for m, used in ((wrong(), False), (right(), True)):
        m(**call).sum().backward()
        if (m.cross_attention.query.weight.grad is not None) != used:
            return False
    return (wrong()(**call) - right()(**call)).abs().max().item() > 1e-2
