"""The scale is written d ** 1 / 2, which is d / 2, and the scores are multiplied by it. Source: github.com/mkara44/transunet_pytorch/issues/4"""
import torch
from torch import nn

expect = ["other-scale"]
words = "scores are multiplied by d/2 (operator precedence), not divided by sqrt(d)"


class PatchAttention(nn.Module):
    def __init__(self, fixed, width=32, heads=4):
        super().__init__()
        self.heads = heads
        d = width // heads
        self.factor = d ** -0.5 if fixed else d ** 1 / 2
        self.fused = nn.Linear(width, 3 * width, bias=False)
        self.last = nn.Linear(width, width, bias=False)

    def forward(self, x, mask=None):
        b, t, c = x.shape
        q, k, v = self.fused(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        z = torch.einsum("bhid,bhjd->bhij", q, k) * self.factor
        if mask is not None:
            z = z.masked_fill(mask, float("-inf"))
        y = torch.einsum("bhij,bhjd->bhid", z.softmax(-1), v)
        return self.last(y.transpose(1, 2).reshape(b, t, c))


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 9, 32)))


def _make(fixed):
    torch.manual_seed(0)
    return PatchAttention(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    return not torch.allclose(wrong()(**a), right()(**a), atol=1e-2)
