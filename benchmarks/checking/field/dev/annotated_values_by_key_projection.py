"""Values pass through the projection of the keys, so the projection of values is never used. Source: github.com/yflyzhang/AnnotatedTransformer/issues/1"""
import torch
from torch import nn

expect = ["keys-are-queries", "values-are-keys", "projection-other"]
words = "value is projected by the key projection; the value projection has no effect"


class SeveralHeads(nn.Module):
    def __init__(self, heads, width, slip):
        super().__init__()
        self.heads, self.size, self.slip = heads, width // heads, slip
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(width, width)
        self.to_v = nn.Linear(width, width)
        self.last = nn.Linear(width, width)

    def cut(self, x):
        return x.view(x.size(0), -1, self.heads, self.size).transpose(1, 2)

    def forward(self, query, key, value, mask=None):
        q = self.cut(self.to_q(query))
        k = self.cut(self.to_k(key))
        v = self.cut(self.to_k(value) if self.slip else self.to_v(value))
        z = q @ k.transpose(-1, -2) / self.size ** 0.5
        if mask is not None:
            z = z.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        y = z.softmax(-1) @ v
        return self.last(y.transpose(1, 2).reshape(query.size(0), -1, self.heads * self.size))


def make(slip):
    torch.manual_seed(3)
    return SeveralHeads(4, 32, slip).eval()


def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(query=torch.randn(2, 5, 32), key=torch.randn(2, 7, 32), value=torch.randn(2, 7, 32)))


def wrong(): return make(True)
def right(): return make(False)


def proof():
    a = asks()["inputs"]
    w = wrong()
    y = w(**a)
    nn.init.zeros_(w.to_v.weight)
    return torch.equal(y, w(**a)) and not torch.allclose(y, right()(**a), atol=1e-3)
