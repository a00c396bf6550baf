"""The causal mask is laid on only where no cache is given, and the prompt is read with a cache. Source: github.com/Mikyx-1/TinyLLM/pull/18"""
import math
import torch
from torch import nn
import intently as it

expect = ["mask-in-cache", "mask-in-one-path", "mask-missing", "cached-step-differs"]
words = "with a cache, tokens of the prompt see later tokens"


class Past:
    def __init__(self):
        self.k = self.v = None

    def add(self, k, v):
        if self.k is not None:
            k, v = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)
        self.k, self.v = k, v
        return k, v


class Attention(nn.Module):
    def __init__(self, always, width=32, heads=4, longest=32):
        super().__init__()
        self.heads, self.always = heads, always
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.register_buffer("later", torch.ones(longest, longest, dtype=torch.bool).triu(1))

    def forward(self, x, cache=None):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        before = 0
        if cache is not None:
            before = 0 if cache.k is None else cache.k.shape[2]
            k, v = cache.add(k, v)
        z = q @ k.transpose(2, 3) / math.sqrt(c // self.heads)
        if self.always:
            z = z.masked_fill(self.later[before : before + t, : before + t], -math.inf)
        elif cache is None:
            z = z.masked_fill(self.later[:t, :t], -math.inf)
        return self.o((z.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class Model(nn.Module):
    """Two blocks; each has a cache of its own."""

    def __init__(self, always, words=40, width=32):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(32, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.blocks = nn.ModuleList(Attention(always) for _ in range(2))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids, caches=None):
        start = 0 if caches is None or caches[0].k is None else caches[0].k.shape[2]
        x = self.words(ids) + self.places(torch.arange(start, start + ids.shape[1]))
        for i, (norm, block) in enumerate(zip(self.norms, self.blocks)):
            x = x + block(norm(x), None if caches is None else caches[i])
        return self.head(x)


def _ids():
    torch.manual_seed(10)
    return torch.randint(1, 40, (2, 8))


def asks():
    return dict(inputs=dict(ids=_ids(), caches=[Past(), Past()]), mask=it.causal())


def _build(always):
    torch.manual_seed(11)
    return Model(always).eval()


def wrong():
    return _build(False)


def right():
    return _build(True)


def proof():
    ids, a, b = _ids(), wrong(), right()
    fresh = lambda: [Past(), Past()]
    same = (a(ids) - b(ids)).abs().max() < 1e-6
    return bool(same and (a(ids, fresh()) - a(ids)).abs().max() > 1e-2 and (b(ids, fresh()) - b(ids)).abs().max() < 1e-5)
