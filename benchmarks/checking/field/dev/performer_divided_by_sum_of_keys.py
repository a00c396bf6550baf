"""Causal linear attention divides the context by the running sum of keys, entry by entry, in place of q times that sum. Source: github.com/lucidrains/performer-pytorch/issues/21"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["not-normalised"]
words = "weights of a query do not sum to 1"


def causal_linear_before(q, k, v):
    sums = k.cumsum(dim=-2)
    context = torch.einsum("...nd,...ne->...nde", k, v).cumsum(dim=-3)
    context = context / sums.unsqueeze(dim=-1)
    return torch.einsum("...nde,...nd->...ne", context, q)


def causal_linear(q, k, v):
    norm = 1.0 / torch.einsum("...nd,...nd->...n", q, k.cumsum(dim=-2))
    context = torch.einsum("...nd,...ne->...nde", k, v).cumsum(dim=-3)
    return torch.einsum("...nde,...nd,...n->...ne", context, q, norm)


class FastAttention(nn.Module):
    """Generalised linear attention: relu features, causal."""

    def __init__(self, linear, width=32, heads=4, features=12):
        super().__init__()
        self.heads, self.linear = heads, linear
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width) for _ in range(4))
        self.register_buffer("projection", torch.randn(features, width // heads))

    def features(self, x):
        return F.relu(x * x.shape[-1] ** -0.25 @ self.projection.T) + 1e-3

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        y = self.linear(self.features(q), self.features(k), v)
        return self.to_out(y.transpose(1, 2).reshape(b, t, c))


def asks():
    import intently as it

    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 8, 32)), mask=it.causal())


def wrong():
    torch.manual_seed(0)
    return FastAttention(causal_linear_before).eval()


def right():
    torch.manual_seed(0)
    return FastAttention(causal_linear).eval()


def proof():
    q, k = torch.rand(2, 5, 6) + 0.1, torch.rand(2, 5, 6) + 0.1
    one = torch.ones(2, 5, 3)
    x = asks()["inputs"]["x"]
    even = torch.allclose(causal_linear(q, k, one), one, atol=1e-5) and not torch.allclose(causal_linear_before(q, k, one), one, atol=1e-2)
    return even and not torch.allclose(wrong()(x), right()(x), atol=1e-3)
