"""In the decoder, queries are made from the encoder's output, keys and values from the decoder. Source: github.com/rexrex9/nlp_torchtext/pull/2"""
import torch
from torch import nn

expect = ["cross-ignores-context", "projections-exchanged"]
words = "the two sides of cross-attention are exchanged"


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.w_q, self.w_k, self.w_v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.w_o = nn.Linear(width, width, bias=False)

    def forward(self, queries, others):
        b = queries.shape[0]
        q, k, v = self.w_q(queries), self.w_k(others), self.w_v(others)
        q, k, v = (z.view(b, -1, self.heads, z.shape[-1] // self.heads).transpose(1, 2) for z in (q, k, v))
        a = torch.softmax(q @ k.transpose(2, 3) / q.shape[-1] ** 0.5, dim=-1)
        return self.w_o((a @ v).transpose(1, 2).reshape(b, -1, q.shape[-1] * self.heads))


class DecoderStep(nn.Module):
    """Cross-attention, then a feed-forward layer; source and target are padded to one length."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width))

    def read(self, x, encoded):
        return self.attention(encoded, x)

    def forward(self, x, encoded):
        x = self.norm_1(x + self.read(x, encoded))
        return self.norm_2(x + self.feed(x))


class Mended(DecoderStep):
    def read(self, x, encoded):
        return self.attention(x, encoded)


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 6, 32), encoded=torch.randn(2, 6, 32)))


def wrong():
    torch.manual_seed(0)
    return DecoderStep().eval()


def right():
    torch.manual_seed(0)
    return Mended().eval()


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-3)
