"""FAVOR attention draws one random feature map for queries and another one for keys, so products of features no longer estimate exp(q k). Source: github.com/facebookresearch/xformers/pull/183"""
import math
import torch
import torch.nn as nn

expect = ["scores-other", "differs-from-reference"]
words = "queries and keys pass through different random projections"


class SMOrf(nn.Module):
    def __init__(self, d, features):
        super().__init__()
        q, _ = torch.linalg.qr(torch.randn(features, features))
        rows = q[:, :d] if features >= d else q
        self.register_buffer("w", rows * torch.randn(features, d).norm(dim=1, keepdim=True) / rows.norm(dim=1, keepdim=True))

    def forward(self, x):
        x = x * x.shape[-1] ** -0.25
        z = x @ self.w.T - (x ** 2).sum(-1, keepdim=True) / 2
        return torch.exp(z) / math.sqrt(self.w.shape[0])


class FavorAttention(nn.Module):
    def __init__(self, d, features, one):
        super().__init__()
        self.feature_map_query = SMOrf(d, features)
        self.feature_map_key = self.feature_map_query if one else SMOrf(d, features)

    def forward(self, q, k, v):
        a, b = self.feature_map_query(q), self.feature_map_key(k)
        return (a @ (b.transpose(-2, -1) @ v)) / (a @ b.sum(-2)[..., None] + 1e-6)


class MultiHead(nn.Module):
    def __init__(self, one, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.attention = FavorAttention(width // heads, 64, one)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.out(self.attention(q, k, v).transpose(1, 2).reshape(b, t, c))


def build(one):
    torch.manual_seed(0)
    return MultiHead(one).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 7, 32)), like=right())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    torch.manual_seed(2)
    x = torch.randn(2, 7, 32) * 3
    a, b = wrong(), right()
    q, k, v = (f(x).view(2, 7, 4, -1).transpose(1, 2) for f in (a.q, a.k, a.v))
    exact = nn.functional.scaled_dot_product_attention(q, k, v)
    return bool((a.attention(q, k, v) - exact).abs().mean() > 1.3 * (b.attention(q, k, v) - exact).abs().mean())
