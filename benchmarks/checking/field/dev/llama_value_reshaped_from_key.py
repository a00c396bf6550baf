"""After a fused projection a Llama layer reshapes k twice and calls the second result v. Source: github.com/meta-pytorch/torchtune/pull/21"""
import intently as it
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["values-are-keys"]
words = "the weighted sum is of the (unrotated) keys; the projection to values has no effect"


def turn(x):
    t, d = x.shape[1], x.shape[-1]
    rate = 10000.0 ** (-torch.arange(0, d, 2) / d)
    angle = torch.arange(t)[:, None] * rate
    cos, sin = angle.cos()[None, :, None], angle.sin()[None, :, None]
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class GroupedAttention(nn.Module):
    def __init__(self, width, heads, groups, mended):
        super().__init__()
        self.heads, self.groups, self.d, self.mended = heads, groups, width // heads, mended
        self.qkv = nn.Linear(width, (heads + 2 * groups) * self.d, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        each = self.heads // self.groups
        qkv = self.qkv(x).view(b, t, self.groups, each + 2, self.d)
        q, k, v = qkv.split([each, 1, 1], dim=3)
        k = k.expand(b, t, self.groups, each, self.d)
        v = v.expand(b, t, self.groups, each, self.d)
        q = q.reshape(b, t, self.heads, self.d)
        kk = k.reshape(b, t, self.heads, self.d)
        vv = (v if self.mended else k).reshape(b, t, self.heads, self.d)
        q, kk, vv = turn(q).transpose(1, 2), turn(kk).transpose(1, 2), vv.transpose(1, 2)
        y = F.scaled_dot_product_attention(q, kk, vv, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class RootNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.gain * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class DecoderLayer(nn.Module):
    def __init__(self, width, heads, groups, mended):
        super().__init__()
        self.n1, self.n2 = RootNorm(width), RootNorm(width)
        self.attention = GroupedAttention(width, heads, groups, mended)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        x = x + self.attention(self.n1(x))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class TinyLlama(nn.Module):
    def __init__(self, mended):
        super().__init__()
        self.tokens = nn.Embedding(40, 32)
        self.layers = nn.ModuleList(DecoderLayer(32, 4, 2, mended) for _ in range(2))
        self.norm = RootNorm(32)
        self.head = nn.Linear(32, 40, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def build(mended):
    torch.manual_seed(0)
    return TinyLlama(mended).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(tokens=torch.randint(0, 40, (2, 7))), mask=it.causal())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-3)
