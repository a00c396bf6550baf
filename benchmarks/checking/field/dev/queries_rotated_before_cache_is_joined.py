"""Keys are cached unrotated; the offset of the queries is the difference of lengths, taken before the cache is joined on: it is 0. Source: github.com/RobertCsordas/moeut/pull/6"""
import intently as it
import torch
from torch import nn

expect = ["rotation-offset-lost", "cached-step-differs"]
words = "new queries are rotated as the first ones, beside keys at their true positions"

OLD, NEW, C, HEADS = 5, 3, 32, 2


def asks():
    g = torch.Generator().manual_seed(7)
    kept = {name: torch.randn(2, HEADS, OLD, C // HEADS, generator=g) for name in ("k", "v")}
    return dict(inputs=dict(x=torch.randn(2, NEW, C, generator=g), kv_cache=kept), mask=it.causal())


def turn(x, start):
    d = x.shape[-1]
    inverse = 50.0 ** (-torch.arange(0, d, 2) / d)
    angle = (start + torch.arange(x.shape[-2])).unsqueeze(-1) * inverse
    sin, cos = angle.sin().repeat(1, 2), angle.cos().repeat(1, 2)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class RotaryAttention(nn.Module):
    def __init__(self, width, heads, offset_after_joining):
        super().__init__()
        self.heads, self.offset_after_joining = heads, offset_after_joining
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, kv_cache=None):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        offset = k.shape[-2] - q.shape[-2]
        if kv_cache is not None:
            k, v = torch.cat((kv_cache["k"], k), -2), torch.cat((kv_cache["v"], v), -2)
        if self.offset_after_joining:
            offset = k.shape[-2] - q.shape[-2]
        kept = {"k": k, "v": v}
        z = turn(q, offset) @ turn(k, 0).mT / q.shape[-1] ** 0.5
        t, s = z.shape[-2:]
        z = z.masked_fill(torch.ones(t, s, dtype=torch.bool).triu(s - t + 1), float("-inf"))
        return self.o((z.softmax(-1) @ v).transpose(1, 2).flatten(2)), kept


def make(offset_after_joining):
    torch.manual_seed(1)
    return RotaryAttention(C, HEADS, offset_after_joining).eval()


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    x = torch.randn(2, OLD + NEW, C)
    apart = []
    for m in (wrong(), right()):
        whole, _ = m(x)
        first, kept = m(x[:, :OLD])
        then, _ = m(x[:, OLD:], kept)
        apart.append((torch.cat((first, then), 1) - whole).abs().max().item())
    return apart[0] > 1e-2 and apart[1] < 1e-5
