"""Scaled cosine attention divides q_i k_j by the norms of q_i and k_i: the norms are multiplied row by row, not each with each. Source: github.com/ChristophReich1996/Swin-Transformer-V2/issues/1"""
import torch
from torch import nn

expect = ["scores-other", "other-scale"]
words = "scores are no cosines: the norm of the key of the query's own row divides, the key's own norm does not"


def asks():
    return dict(inputs=dict(x=torch.randn(2, 9, 32)), scale=10.0)


class WindowMultiHeadAttention(nn.Module):
    def __init__(self, width, heads, norms):
        super().__init__()
        self.heads, self.norms = heads, norms
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.tau = nn.Parameter(torch.full((1, heads, 1, 1), 0.1))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        lengths = self.norms(q.norm(dim=-1, keepdim=True), k.norm(dim=-1, keepdim=True))
        score = torch.einsum("bhqd,bhkd->bhqk", q, k) / lengths.clamp(min=1e-6)
        score = score / self.tau.clamp(min=0.01)
        y = torch.einsum("bhqk,bhkd->bhqd", score.softmax(-1), v)
        return self.out(y.permute(0, 2, 1, 3).reshape(b, n, c))


def make(norms):
    torch.manual_seed(6)
    return WindowMultiHeadAttention(32, 4, norms).eval()


def wrong():
    return make(lambda q, k: q * k)


def right():
    return make(lambda q, k: q @ k.mT)


def proof():
    x = torch.randn(2, 9, 32)
    return (wrong()(x) - right()(x)).abs().max().item() > 1e-2
