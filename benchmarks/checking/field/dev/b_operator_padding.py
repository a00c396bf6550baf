"""Linear attention of a neural operator has no mask, so padded mesh points enter the key sums. Source: github.com/HaoZhongkai/GNOT/issues/12"""
import torch
from torch import nn

import intently as it

expect = ["padding-attended"]
words = "padded points are summed into keys and values"

LENGTHS = torch.tensor([8, 5])


def asks():
    return dict(inputs=dict(x=torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(3)), lengths=LENGTHS), mask=it.padding([8, 5]))


class OperatorAttention(nn.Module):
    def __init__(self, width=32, heads=4, hides=False):
        super().__init__()
        self.query, self.key, self.value, self.proj = (nn.Linear(width, width) for _ in range(4))
        self.heads, self.hides = heads, hides

    def forward(self, x, lengths=None, y=None):
        y = x if y is None else y
        split = lambda u: u.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q = split(self.query(x)).softmax(-1)
        k = split(self.key(y)).softmax(-1)
        v = split(self.value(y))
        if self.hides and lengths is not None:
            real = torch.arange(y.shape[1]) < lengths[:, None]
            k = k * real[:, None, :, None]
        share = 1.0 / (q * k.sum(-2, keepdim=True)).sum(-1, keepdim=True)
        out = (q @ (k.transpose(-2, -1) @ v)) * share + q
        return self.proj(out.transpose(1, 2).flatten(2))


def _make(hides):
    torch.manual_seed(0)
    return OperatorAttention(hides=hides).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    d = (wrong()(**a) - right()(**a)).abs()
    return d[0].max().item() < 1e-5 and d[1, :5].max().item() > 1e-3


if __name__ == "__main__":
    print(proof())
