"""Cached fragments, each rotated from position 0, are concatenated without turning the second one on to its new positions. Source: github.com/MemTensor/MemOS/issues/2315"""
import torch
from torch import nn

expect = ["rotation-offset-lost", "rotation-other", "position-offset-lost", "differs-from-reference"]
words = "keys of the second fragment keep the phases of positions 0, 1, ... in place of those behind the first"


def asks():
    g = torch.Generator().manual_seed(2)
    return dict(inputs=dict(first=torch.randn(2, 4, 32, generator=g), second=torch.randn(2, 3, 32, generator=g), x=torch.randn(2, 2, 32, generator=g)), like=right())


def _rotate(u, start):
    d = u.shape[-1]
    angles = (start + torch.arange(u.shape[-2]))[:, None] * 100.0 ** (-torch.arange(0, d, 2) / d)
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    low, high = u.chunk(2, -1)
    return u * cos + torch.cat([-high, low], -1) * sin


class MemoryAttention(nn.Module):
    def __init__(self, width=32, heads=2, moves=False):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.heads, self.moves = heads, moves

    def split(self, u):
        return u.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def prefill(self, text, start=0):
        return _rotate(self.split(self.k(text)), start), self.split(self.v(text))

    def forward(self, first, second, x):
        parts = [self.prefill(first), self.prefill(second, first.shape[1] if self.moves else 0)]
        past_k, past_v = (torch.cat(p, dim=-2) for p in zip(*parts))
        n, t = past_k.shape[-2], x.shape[1]
        q = _rotate(self.split(self.q(x)), n)
        k = torch.cat([past_k, _rotate(self.split(self.k(x)), n)], -2)
        v = torch.cat([past_v, self.split(self.v(x))], -2)
        z = q @ k.mT * q.shape[-1] ** -0.5
        z = z.masked_fill(torch.ones(t, n + t, dtype=torch.bool).triu(n + 1), float("-inf"))
        return self.o((z.softmax(-1) @ v).transpose(1, 2).flatten(2))


def _make(moves):
    torch.manual_seed(0)
    m = MemoryAttention(moves=moves).eval()
    with torch.no_grad():
        m.q.weight.mul_(3)
    return m


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    return (wrong()(**a) - right()(**a)).abs().max().item() > 1e-2


if __name__ == "__main__":
    print(proof())
