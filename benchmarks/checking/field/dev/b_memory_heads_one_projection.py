"""An episodic memory's attention cuts the raw input into heads and projects every head by the same small matrix. Source: github.com/MarcoMeter/episodic-transformer-memory-ppo/pull/22"""
import torch
from torch import nn

expect = []
words = "each head sees only its own slice of the input, and all heads share one projection of width d; heads should be cut from full projections"


class MemoryAttention(nn.Module):
    def __init__(self, fixed, width=32, heads=4):
        super().__init__()
        self.fixed, self.heads, self.d = fixed, heads, width // heads
        n = width if fixed else self.d
        self.values = nn.Linear(n, n, bias=False)
        self.keys = nn.Linear(n, n, bias=False)
        self.queries = nn.Linear(n, n, bias=False)
        self.fc_out = nn.Linear(width, width)

    def _cut(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.d)

    def forward(self, values, keys, query, mask=None):
        if self.fixed:
            v, k, q = self._cut(self.values(values)), self._cut(self.keys(keys)), self._cut(self.queries(query))
        else:
            v, k, q = self.values(self._cut(values)), self.keys(self._cut(keys)), self.queries(self._cut(query))
        z = torch.einsum("bqhd,bkhd->bhqk", q, k)
        if mask is not None:
            z = z.masked_fill(mask[:, None, None] == 0, -1e20)
        w = torch.softmax(z / self.d ** 0.5, dim=3)
        y = torch.einsum("bhqk,bkhd->bqhd", w, v)
        return self.fc_out(y.reshape(query.shape[0], query.shape[1], -1))


def asks():
    torch.manual_seed(1)
    memory = torch.randn(2, 6, 32)
    return dict(inputs=dict(values=memory, keys=memory, query=torch.randn(2, 1, 32)))


def _make(fixed):
    torch.manual_seed(0)
    return MemoryAttention(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    """The first head of the wrong module does not see the other three quarters of the query."""
    a = asks()["inputs"]
    other = dict(a, query=torch.cat((a["query"][..., :8], torch.randn(2, 1, 24)), -1))
    seen = []
    for m in (wrong(), right()):
        m.fc_out = nn.Identity()
        seen.append(torch.allclose(m(**a)[..., :8], m(**other)[..., :8]))
    return seen == [True, False]
