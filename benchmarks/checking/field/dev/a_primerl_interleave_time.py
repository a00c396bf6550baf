"""The plain path of a grouped attention repeats keys and values by repeat_interleave(dim=1) on (batch, time, heads, d), which repeats tokens; with one key head the call still runs. Source: github.com/PrimeIntellect-ai/prime-rl/pull/2681"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["mask-other", "mask-top-left", "values-of-other-keys"]
words = "each token's key stands h times in time; is_causal then shows query i only the first i + 1 copies"


class Attention(nn.Module):
    def __init__(self, axis, width=32, heads=4, groups=1):
        super().__init__()
        self.axis, self.heads, self.groups, self.d = axis, heads, groups, width // heads
        self.q_proj, self.o_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.kv_proj = nn.Linear(width, 2 * groups * self.d, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q = self.q_proj(x).view(b, t, self.heads, self.d)
        k, v = self.kv_proj(x).view(b, t, 2, self.groups, self.d).unbind(2)
        n = self.heads // self.groups
        if n > 1:
            k, v = k.repeat_interleave(n, dim=self.axis), v.repeat_interleave(n, dim=self.axis)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, axis, width=32):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attn = Attention(axis, width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.SiLU(), nn.Linear(64, width))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


def build(axis):
    torch.manual_seed(0)
    return Block(axis).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 8, 32)), mask=it.causal())


def wrong():
    return build(1)


def right():
    return build(2)


def proof():
    x = torch.randn(2, 8, 32)
    y = x.clone()
    y[:, 3] = torch.randn(2, 32)
    a, b = wrong().attn, right().attn
    return torch.allclose(a(x)[:, 5], a(y)[:, 5], atol=1e-6) and not torch.allclose(b(x)[:, 5], b(y)[:, 5], atol=1e-4)
