"""Heads are made by a view to (batch * heads, -1, width) without a transpose. Source: github.com/reczoo/FuxiCTR/issues/30"""
import torch
from torch import nn

expect = ["split-by-reshape", "merged-by-reshape"]
words = "each head reads numbers of several fields"


class FieldAttention(nn.Module):
    """AutoInt: the fields of an advertisement attend to each other."""

    def __init__(self, input_dim=16, attention_dim=8, num_heads=3):
        super().__init__()
        self.num_heads, self.attention_dim = num_heads, attention_dim
        width = attention_dim * num_heads
        self.w_q, self.w_k, self.w_v = (nn.Linear(input_dim, width, bias=False) for _ in range(3))
        self.w_res = nn.Linear(input_dim, width, bias=False)

    def apart(self, x):
        return x.view(x.size(0) * self.num_heads, -1, self.attention_dim)

    def together(self, x, b):
        return x.view(b, -1, self.num_heads * self.attention_dim)

    def forward(self, fields):
        q, k, v = (self.apart(w(fields)) for w in (self.w_q, self.w_k, self.w_v))
        attn = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / self.attention_dim**0.5, dim=-1)
        y = self.together(torch.bmm(attn, v), fields.size(0))
        return torch.relu(y + self.w_res(fields))


class Mended(FieldAttention):
    def apart(self, x):
        b, n, _ = x.shape
        return x.view(b, n, self.num_heads, -1).transpose(1, 2).reshape(b * self.num_heads, n, -1)

    def together(self, x, b):
        return x.view(b, self.num_heads, -1, self.attention_dim).transpose(1, 2).flatten(2)


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(fields=torch.randn(2, 7, 16)))


def wrong():
    torch.manual_seed(0)
    return FieldAttention().eval()


def right():
    torch.manual_seed(0)
    return Mended().eval()


def proof():
    x = asks()["inputs"]["fields"]
    return not torch.allclose(wrong()(x), right()(x), atol=1e-3)
