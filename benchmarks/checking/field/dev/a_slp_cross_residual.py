"""The cross-attention sublayer of a decoder adds the encoder's output as its residual instead of the decoder's own state. Source: github.com/georgepar/slp/pull/26"""
import torch
import torch.nn as nn

expect = []
words = "the residual of cross-attention is the encoder's states: the decoder's own stream is lost, later targets only steer the weights"


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.k, self.q, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, queries, keys, mask=None):
        split = lambda a: a.view(*a.shape[:2], self.heads, -1).transpose(1, 2)
        z = split(self.q(queries)) @ split(self.k(keys)).transpose(-1, -2) * self.scale
        if mask is not None:
            z = z.masked_fill(~mask, float("-inf"))
        return self.o((z.softmax(-1) @ split(self.v(keys))).transpose(1, 2).flatten(2))


class DecoderLayer(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.own, self.cross = Attention(width, heads), Attention(width, heads)
        self.a, self.b, self.c = (nn.LayerNorm(width) for _ in range(3))
        self.feed = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width))

    def crossed(self, x, encoded):
        return self.b(encoded + self.cross(x, encoded))

    def forward(self, x, encoded):
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        x = self.a(x + self.own(x, x, seen))
        x = self.crossed(x, encoded)
        return self.c(x + self.feed(x))


class DecoderLayerMended(DecoderLayer):
    def crossed(self, x, encoded):
        return self.b(x + self.cross(x, encoded))


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 6, 32), encoded=torch.randn(2, 6, 32)))


def wrong():
    torch.manual_seed(0)
    return DecoderLayer().eval()


def right():
    torch.manual_seed(0)
    return DecoderLayerMended().eval()


def proof():
    i = asks()["inputs"]
    return not torch.allclose(wrong()(**i), right()(**i), atol=1e-5)
