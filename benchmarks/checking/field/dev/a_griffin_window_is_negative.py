"""A Griffin-like model passes -window to the kernel, for which a negative left side means no limit. Source: github.com/proger/hippogriff/issues/7"""
import torch
from torch import nn
import intently as it

expect = ["window-missing"]
words = "local attention is causal attention over everything"


def asks():
    torch.manual_seed(3)
    return dict(inputs=dict(x=torch.randn(2, 9, 32)), mask=it.window(3, 0))


def kernel(q, k, v, causal=False, window_size=(-1, -1)):
    """q, k, v: (b, t, h, d). A query sees `left` keys before and `right` after its own; negative: no limit."""
    left, right_ = window_size
    distance = torch.arange(q.shape[1])[:, None] - torch.arange(k.shape[1])[None]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if left >= 0:
        seen &= distance <= left
    if right_ >= 0:
        seen &= -distance <= right_
    if causal:
        seen &= distance >= 0
    z = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhij,bjhd->bihd", z.masked_fill(~seen, float("-inf")).softmax(-1), v)


def rotate(x):
    t, d = x.shape[1], x.shape[-1]
    angle = torch.outer(torch.arange(t).float(), 10000.0 ** (-torch.arange(0, d, 2) / d))[None, :, None]
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


class LocalAttention(nn.Module):
    def __init__(self, width=32, heads=4, window=3):
        super().__init__()
        self.heads, self.size, self.window = heads, width // heads, window
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * self.size, bias=False)                # one key head for all queries
        self.output = nn.Linear(width, width, bias=False)

    def sides(self):
        return (-self.window, 0)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (self.heads, self.size))
        k, v = self.kv(x)[:, :, None].expand(-1, -1, self.heads, -1).chunk(2, -1)
        return self.output(kernel(rotate(q), rotate(k), v, causal=True, window_size=self.sides()).flatten(2))


class LocalAttentionMended(LocalAttention):
    def sides(self):
        return (self.window, 0)


def wrong():
    torch.manual_seed(0)
    return LocalAttention().eval()


def right():
    torch.manual_seed(0)
    return LocalAttentionMended().eval()


def proof():
    x = asks()["inputs"]["x"]
    y = x.clone()
    y[:, 0] += 1
    moved = lambda f: (f(x) - f(y))[:, 4:].abs().max() > 1e-4
    return bool(moved(wrong()) and not moved(right()))
