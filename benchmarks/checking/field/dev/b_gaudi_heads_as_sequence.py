"""Queries, keys and values (batch, tokens, heads, width) reach the fused attention without the transposition, so the heads of a token attend to each other. Source: github.com/HabanaAI/vllm-fork/pull/1218"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["mask-other", "softmax-over-heads", "differs-from-reference"]
words = "the missing transpose(1, 2) makes heads the sequence: no token sees another"


def asks():
    return dict(inputs=dict(x=torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(6))), like=right())


class EncoderAttention(nn.Module):
    def __init__(self, width=32, heads=4, swaps=False):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.swaps = heads, swaps

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (u.view(b, t, self.heads, c // self.heads) for u in self.qkv(x).chunk(3, -1))
        if self.swaps:
            q, k, v = (u.transpose(1, 2) for u in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v)
        if self.swaps:
            y = y.transpose(1, 2)
        return self.out(y.reshape(b, t, c))


def _make(swaps):
    torch.manual_seed(0)
    return EncoderAttention(swaps=swaps).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    x = asks()["inputs"]["x"]
    other = x.clone()
    other[:, 1:] += 1
    w = wrong()
    return (w(x) - right()(x)).abs().max().item() > 1e-2 and torch.equal(w(x)[:, 0], w(other)[:, 0])


if __name__ == "__main__":
    print(proof())
