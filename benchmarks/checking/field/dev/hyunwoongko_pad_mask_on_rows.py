"""The padding mask is unsqueezed to (b, 1, t, 1), so it hides rows of padding and no column. Source: github.com/hyunwoongko/transformer/pull/40"""
import math

import torch
from torch import nn

expect = ["mask-on-queries", "padding-attended"]
words = "queries at padding are masked, keys at padding are seen"


class Attend(nn.Module):
    def forward(self, q, k, v, mask=None):
        score = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        if mask is not None:
            score = score.masked_fill(mask == 0, -10000)
        return score.softmax(dim=-1) @ v


class EncoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.attend = heads, Attend()
        self.w_q, self.w_k, self.w_v, self.w_concat = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ffn = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width))

    def split(self, x):
        b, n, c = x.shape
        return x.view(b, n, self.heads, c // self.heads).transpose(1, 2)

    def forward(self, x, mask):
        y = self.attend(self.split(self.w_q(x)), self.split(self.w_k(x)), self.split(self.w_v(x)), mask)
        x = self.norm1(x + self.w_concat(y.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.ffn(x))


class Encoder(nn.Module):
    def __init__(self, vocabulary=20, width=32, heads=4, layers=2, pad=0):
        super().__init__()
        self.pad = pad
        self.tokens, self.positions = nn.Embedding(vocabulary, width, padding_idx=pad), nn.Embedding(16, width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))

    def pad_mask(self, ids):
        return (ids != self.pad).unsqueeze(1).unsqueeze(3)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        mask = self.pad_mask(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return x


class Mended(Encoder):
    def pad_mask(self, ids):
        return (ids != self.pad).unsqueeze(1).unsqueeze(2)


_ids = torch.tensor([[5, 7, 2, 9, 14, 3, 8], [4, 11, 6, 3, 0, 0, 0]])


def asks():
    import intently as it

    return dict(inputs=dict(ids=_ids.clone()), mask=it.padding(_ids != 0))


def wrong():
    torch.manual_seed(0)
    return Encoder().eval()


def right():
    torch.manual_seed(0)
    return Mended().eval()


def proof():
    return not torch.allclose(wrong()(_ids)[1, :4], right()(_ids)[1, :4], atol=1e-3)
