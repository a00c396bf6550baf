"""An efficient additive attention takes the softmax of pooling scores (batch, tokens, 1) along the last axis, which has one entry: every weight is 1. Source: github.com/Amshaker/SwiftFormer/issues/4"""
import torch
from torch import nn
import torch.nn.functional as F

expect = ["not-normalised"]
words = "the softmax runs along an axis of length 1, so the global query is the plain sum of all queries and the learned weights have no effect"


class AdditivePooling(nn.Module):
    """Queries are pooled to one global query by learned weights; it multiplies every key."""

    axis = -1

    def __init__(self, width=32, heads=2, out=32):
        super().__init__()
        inner = width * heads
        self.query = nn.Linear(width, inner)
        self.key = nn.Linear(width, inner)
        self.weigher = nn.Parameter(torch.randn(inner, 1))
        self.factor = width ** -0.5
        self.mix = nn.Linear(inner, inner)
        self.last = nn.Linear(inner, out)

    def forward(self, x):
        q = F.normalize(self.query(x), dim=-1)
        k = F.normalize(self.key(x), dim=-1)
        alpha = (q.matmul(self.weigher) * self.factor).softmax(dim=self.axis)
        whole = (alpha * q).sum(dim=1, keepdim=True).expand_as(k)
        return self.last(self.mix(whole * k) + q)


class AdditivePoolingMended(AdditivePooling):
    axis = 1


class Block(nn.Module):
    """Local depthwise convolution, attention over all pixels, MLP of 1x1 convolutions."""

    def __init__(self, attention, width=32):
        super().__init__()
        self.local = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, groups=width), nn.BatchNorm2d(width), nn.Conv2d(width, width, 1))
        self.attention = attention(width, 1, width)
        self.mlp = nn.Sequential(nn.BatchNorm2d(width), nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, width, 1))

    def forward(self, x):
        x = x + self.local(x)
        b, c, h, w = x.shape
        flat = x.permute(0, 2, 3, 1).reshape(b, h * w, c)
        x = x + self.attention(flat).reshape(b, h, w, c).permute(0, 3, 1, 2)
        return x + self.mlp(x)


def asks():
    return dict(inputs=dict(x=torch.randn(2, 32, 3, 3)))


def wrong():
    torch.manual_seed(0)
    return Block(AdditivePooling).eval()


def right():
    torch.manual_seed(0)
    return Block(AdditivePoolingMended).eval()


def proof():
    x = torch.randn(2, 32, 3, 3)
    with torch.no_grad():
        return not torch.allclose(wrong()(x), right()(x), atol=1e-3)


if __name__ == "__main__":
    print(proof())
