"""A drop-in multi-head attention takes query, key and value and projects all three from the query. Source: github.com/kyegomez/FlashMHA/issues/3"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["cross-ignores-context"]
words = "key and value are accepted and never read: keys and values are made of the query"


class FlashHeads(nn.Module):
    def __init__(self, embed_dim=32, num_heads=4, causal=False):
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.wqkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def project(self, query, key, value):
        return self.wqkv(query).chunk(3, dim=-1)

    def forward(self, query, key, value):
        q, k, v = (y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for y in self.project(query, key, value))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out_proj(y.transpose(1, 2).flatten(2))


class Mended(FlashHeads):
    def project(self, query, key, value):
        weights, biases = self.wqkv.weight.chunk(3), self.wqkv.bias.chunk(3)
        return tuple(F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))


def asks():
    memory = torch.randn(2, 8, 32)
    return dict(inputs=dict(query=torch.randn(2, 5, 32), key=memory, value=memory))


def _make(cls):
    torch.manual_seed(0)
    return cls().eval()


def wrong():
    return _make(FlashHeads)


def right():
    return _make(Mended)


def proof():
    x = asks()["inputs"]
    other = dict(x, key=x["key"] + 1, value=x["value"] + 1)
    return torch.equal(wrong()(**x), wrong()(**other)) and not torch.allclose(right()(**x), right()(**other), atol=1e-4)
