"""The einsum of the output projection names both axes of its weight alike, so only the diagonal is used. Source: github.com/alan-cooney/transformer-from-scratch/pull/52"""
import torch
from torch import nn

expect = ["output-changed", "differs-from-reference"]
words = "y * diag(W) for y W after the heads are joined: heads are never mixed"


class Attention(nn.Module):
    def __init__(self, fixed, width=32, heads=4):
        super().__init__()
        d = width // heads
        self.fixed, self.d = fixed, d
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(heads, width, d) * width ** -0.5) for _ in range(3))
        self.wo = nn.Parameter(torch.randn(width, width) * width ** -0.5)

    def forward(self, stream):
        q, k, v = (torch.einsum("btc,hcd->bhtd", stream, w) for w in (self.wq, self.wk, self.wv))
        z = torch.einsum("bhtd,bhsd->bhts", q, k) / self.d ** 0.5
        t = z.shape[-1]
        z = z.masked_fill(~torch.ones(t, t, dtype=torch.bool).tril(), float("-inf"))
        joined = torch.einsum("bhts,bhsd->bthd", z.softmax(-1), v).flatten(2)
        if self.fixed:
            return torch.einsum("btc,ce->bte", joined, self.wo)
        return torch.einsum("btc,cc->btc", joined, self.wo)


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(stream=torch.randn(2, 6, 32)), mask=it.causal(), like=right())


def _make(fixed):
    torch.manual_seed(0)
    return Attention(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    """Numbers of the weight beside its diagonal have no effect."""
    x = asks()["inputs"]["stream"]
    moved = []
    for m in (wrong(), right()):
        before = m(x)
        with torch.no_grad():
            m.wo += 1 - torch.eye(32)
        moved.append(not torch.allclose(m(x), before, atol=1e-5))
    return moved == [False, True]
