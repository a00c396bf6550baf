"""A shared cache counts a token as seen as soon as layer 0 has stored it, so upper layers rotate it one position too far. Source: github.com/fla-org/flash-linear-attention/issues/766"""
import torch
from torch import nn

expect = ["cached-step-differs", "rotation-off-by-one", "rotation-other"]
words = "in cached steps the rotary offset of layers above the first is the length including the new tokens"


class SharedCache:
    def __init__(self, fixed):
        self.fixed = fixed
        self.seen = 0
        self.stored = {}

    def length(self, layer):
        if self.fixed:
            return self.stored[layer][0].shape[2] if layer in self.stored else 0
        return self.seen

    def update(self, layer, k, v):
        if layer == 0:
            self.seen += k.shape[2]
        if layer in self.stored:
            k = torch.cat((self.stored[layer][0], k), 2)
            v = torch.cat((self.stored[layer][1], v), 2)
        self.stored[layer] = k, v
        return k, v


def _rotate(x, start):
    half = x.shape[-1] // 2
    angle = torch.arange(start, start + x.shape[2])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    a, b = x.chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)


class Layer(nn.Module):
    def __init__(self, index, width, heads):
        super().__init__()
        self.index, self.heads = index, heads
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x, cache):
        b, t, c = x.shape
        q, k, v = (p(self.norm(x)).view(b, t, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        start = cache.length(self.index)
        q, k = _rotate(q, start), _rotate(k, start)
        k, v = cache.update(self.index, k, v)
        s = k.shape[2]
        z = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        z = z.masked_fill(torch.arange(s) > torch.arange(s - t, s)[:, None], float("-inf"))
        return x + self.o((z.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class Stack(nn.Module):
    def __init__(self, fixed, width=32, heads=2, depth=2):
        super().__init__()
        self.fixed = fixed
        self.layers = nn.ModuleList(Layer(i, width, heads) for i in range(depth))

    def forward(self, x, past=None):
        past = SharedCache(self.fixed) if past is None else past
        for layer in self.layers:
            x = layer(x, past)
        return x, past


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 6, 32)), mask=it.causal())


def _make(fixed):
    torch.manual_seed(0)
    return Stack(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    x = asks()["inputs"]["x"]
    same = []
    for m in (wrong(), right()):
        whole, past = m(x)[0], None
        pieces = []
        for part in (x[:, :3], x[:, 3:4], x[:, 4:5], x[:, 5:]):
            y, past = m(part, past)
            pieces.append(y)
        same.append(torch.allclose(torch.cat(pieces, 1), whole, atol=1e-4))
    return same == [False, True]
