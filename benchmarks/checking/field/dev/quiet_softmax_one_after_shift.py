"""softmax_one subtracts the maximum and then adds 1 to the sum, where exp(-max) belongs. Source: github.com/kyegomez/AttentionIsOFFByOne/issues/5"""
import torch
from torch import nn

expect = ["sinks-other", "not-normalised", "sink"]
words = "the denominator has 1 beside the shifted exponentials: the sink has the score of the best key, not 0"


def softmax_one(x, dim=-1):
    e = torch.exp(x - x.max(dim=dim, keepdim=True).values)
    return e / (1 + e.sum(dim=dim, keepdim=True))


def softmax_one_mended(x, dim=-1):
    top = x.max(dim=dim, keepdim=True).values.clamp(min=0)
    e = torch.exp(x - top)
    return e / (torch.exp(-top) + e.sum(dim=dim, keepdim=True))


class QuietAttention(nn.Module):
    def __init__(self, normalise, width=32, heads=4):
        super().__init__()
        self.normalise, self.heads = normalise, heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (m.unflatten(-1, (self.heads, -1)).transpose(1, 2) for m in self.qkv(x).chunk(3, dim=-1))
        w = self.normalise(q @ k.mT / q.shape[-1] ** 0.5)
        return self.out((w @ v).transpose(1, 2).flatten(2))


def asks():
    return dict(inputs=dict(x=torch.randn(2, 7, 32)), like=right())


def wrong():
    torch.manual_seed(0)
    return QuietAttention(softmax_one).eval()


def right():
    torch.manual_seed(0)
    return QuietAttention(softmax_one_mended).eval()


def proof():
    x = torch.randn(3, 6) * 4
    plain = x.exp() / (1 + x.exp().sum(-1, keepdim=True))
    return torch.allclose(softmax_one_mended(x), plain, atol=1e-5) and not torch.allclose(softmax_one(x), plain, atol=1e-2)


if __name__ == "__main__":
    print(proof())
