"""The result of masked_fill is not kept, so a mask has no effect. Source: github.com/opendilab/DI-engine/issues/333"""
import torch
from torch import nn
import intently as it

expect = ["padding-attended", "mask-missing"]
words = "masked_fill without underscore and without assignment"


class EntityAttention(nn.Module):
    def __init__(self, width, size, heads, slip):
        super().__init__()
        self.heads, self.size, self.slip = heads, size, slip
        self.pre = nn.Linear(width, 3 * size * heads)
        self.out = nn.Linear(size * heads, width)

    def forward(self, x, mask=None):
        b, n = x.shape[:2]
        q, k, v = (u.view(b, n, self.heads, self.size).permute(0, 2, 1, 3).contiguous() for u in self.pre(x).chunk(3, -1))
        score = torch.matmul(q, k.transpose(-1, -2)) / self.size ** 0.5
        if mask is not None:
            off = ~mask[:, None, None, :]
            if self.slip:
                score.masked_fill(off, value=-1e9)
            else:
                score.masked_fill_(off, value=-1e9)
        y = torch.matmul(score.softmax(-1), v)
        return self.out(y.permute(0, 2, 1, 3).reshape(b, n, -1))


def make(slip):
    torch.manual_seed(6)
    return EntityAttention(24, 8, 4, slip).eval()


def asks():
    torch.manual_seed(0)
    mask = torch.tensor([[True] * 4 + [False] * 2, [True] * 6])
    return dict(inputs=dict(x=torch.randn(2, 6, 24), mask=mask), mask=it.padding(mask))


def wrong(): return make(True)
def right(): return make(False)


def proof():
    a = asks()["inputs"]
    return torch.equal(wrong()(**a), wrong()(a["x"])) and not torch.allclose(right()(**a), wrong()(**a), atol=1e-3)
