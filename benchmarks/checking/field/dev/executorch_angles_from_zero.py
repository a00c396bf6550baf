"""With a cache, a step takes the angles of the first positions instead of those from start_pos on. Source: github.com/pytorch/executorch/pull/2010"""
import torch
from torch import nn
import torch.nn.functional as F
import intently as it

expect = ["rotation-offset-lost", "cached-step-differs"]
words = "freqs[:t] in place of freqs[start:start + t]"


def spin(x, cos, sin):
    a, b = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    cos, sin = cos[None, :, None], sin[None, :, None]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(3)


class Layer(nn.Module):
    def __init__(self, width, heads, longest):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.norm = nn.RMSNorm(width)
        self.register_buffer("cache_k", torch.zeros(8, longest, heads, self.size))
        self.register_buffer("cache_v", torch.zeros(8, longest, heads, self.size))

    def forward(self, x, start, cos, sin, mask):
        b, t, c = x.shape
        h = self.norm(x)
        q, k, v = (f(h).view(b, t, self.heads, self.size) for f in (self.wq, self.wk, self.wv))
        q, k = spin(q, cos, sin), spin(k, cos, sin)
        self.cache_k[:b, start:start + t] = k.detach()
        self.cache_v[:b, start:start + t] = v.detach()
        k = torch.cat((self.cache_k[:b, :start], k), 1)
        v = torch.cat((self.cache_v[:b, :start], v), 1)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
        return x + self.wo(y.transpose(1, 2).reshape(b, t, c))


class Decoder(nn.Module):
    def __init__(self, slip, words=30, width=32, heads=4, depth=2, longest=64):
        super().__init__()
        self.slip = slip
        self.tok = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads, longest) for _ in range(depth))
        self.norm = nn.RMSNorm(width)
        self.output = nn.Linear(width, words, bias=False)
        d = width // heads
        angle = torch.outer(torch.arange(longest).float(), 10000.0 ** (-torch.arange(0, d, 2) / d))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, tokens, start_pos=0):
        t = tokens.shape[1]
        here = slice(0, t) if self.slip else slice(start_pos, start_pos + t)
        mask = torch.arange(start_pos + t)[None] <= torch.arange(start_pos, start_pos + t)[:, None]
        x = self.tok(tokens)
        for layer in self.layers:
            x = layer(x, start_pos, self.cos[here], self.sin[here], mask)
        return self.output(self.norm(x))


def make(slip):
    torch.manual_seed(13)
    return Decoder(slip).eval()


def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(tokens=torch.randint(0, 30, (2, 7)), start_pos=0), mask=it.causal())


def wrong(): return make(True)
def right(): return make(False)


def proof():
    ids = asks()["inputs"]["tokens"]
    far = []
    for m in (wrong(), right()):
        whole = m(ids)
        steps = torch.cat([m(ids[:, :4], 0)] + [m(ids[:, i:i + 1], i) for i in range(4, 7)], 1)
        far.append((whole - steps).abs().max().item())
    return far[0] > 1e-2 and far[1] < 1e-5
