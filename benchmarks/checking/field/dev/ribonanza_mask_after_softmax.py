"""Weights are multiplied by the padding mask after the softmax, so rows of a padded molecule sum to less than 1. Source: github.com/autosome-ru/vigg_ribonanza/issues/1"""
import torch
from torch import nn

expect = ["mask-after-softmax"]
words = "padding takes its share of the weight, which is then thrown away"


class PairedAttention(nn.Module):
    """Attention over nucleotides with a bias from their pairing probabilities."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.part = heads, width // heads
        self.weights = nn.Parameter(torch.randn(width, 3 * width) / width**0.5)
        self.out_w = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.gamma = nn.Parameter(torch.ones(1, heads, 1, 1))

    def normal(self, z, mask):
        return z.softmax(dim=-1) * mask[:, None, None, :]

    def forward(self, x, pairing, mask):
        b, n, _ = x.shape
        q, k, v = (x @ self.weights).view(b, n, self.heads, -1).permute(0, 2, 1, 3).chunk(3, dim=3)
        z = q @ k.transpose(2, 3) / self.part**0.5
        z = z + self.gamma * torch.log(pairing + 1e-5)[:, None]
        y = self.normal(z, mask) @ v
        return y.permute(0, 2, 1, 3).flatten(2, 3) @ self.out_w


class Mended(PairedAttention):
    def normal(self, z, mask):
        return z.masked_fill(~mask[:, None, None, :], float("-inf")).softmax(dim=-1)


_keep = torch.arange(8) < torch.tensor([8, 5])[:, None]


def asks():
    import intently as it

    torch.manual_seed(1)
    pairing = torch.rand(2, 8, 8)
    x = dict(x=torch.randn(2, 8, 32), pairing=(pairing + pairing.mT) / 2, mask=_keep.clone())
    return dict(inputs=x, mask=it.padding(_keep))


def wrong():
    torch.manual_seed(0)
    return PairedAttention().eval()


def right():
    torch.manual_seed(0)
    return Mended().eval()


def proof():
    x = asks()["inputs"]
    a, b = wrong()(**x), right()(**x)
    return torch.allclose(a[0], b[0], atol=1e-5) and not torch.allclose(a[1], b[1], atol=1e-3)
