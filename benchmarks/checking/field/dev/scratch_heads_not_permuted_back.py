"""An encoder-decoder reshapes (batch, heads, time, d) to (batch, time, width) without moving the heads back. Source: github.com/jsbaan/transformer-from-scratch/issues/4"""
import math
import torch
from torch import nn

expect = ["merged-by-reshape"]
words = "a missing permute before the reshape mixes positions into one token"


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def project(self, x, memory):
        b, t = x.shape[:2]
        if memory is None:
            packed = self.qkv(x).view(b, t, self.heads, 3 * self.size).permute(0, 2, 1, 3)
            return packed.chunk(3, dim=-1)
        width = self.heads * self.size
        wq, wkv = self.qkv.weight.split([width, 2 * width])
        bq, bkv = self.qkv.bias.split([width, 2 * width])
        q = nn.functional.linear(x, wq, bq).view(b, t, self.heads, self.size).permute(0, 2, 1, 3)
        kv = nn.functional.linear(memory, wkv, bkv).view(b, memory.shape[1], self.heads, 2 * self.size)
        k, v = kv.permute(0, 2, 1, 3).chunk(2, dim=-1)
        return q, k, v

    def merge(self, y):
        b, h, t, d = y.shape
        return y.reshape(b, t, h * d)

    def forward(self, x, memory=None, padding=None, future=None):
        q, k, v = self.project(x, memory)
        z = q @ k.transpose(-1, -2) / math.sqrt(self.size)
        if padding is not None:
            z = z.masked_fill(padding[:, None, None, :] == 0, float("-inf"))
        if future is not None:
            z = z.masked_fill(future == 0, float("-inf"))
        return self.out(self.merge(z.softmax(-1) @ v))


class AttentionMended(Attention):
    def merge(self, y):
        b, h, t, d = y.shape
        return y.permute(0, 2, 1, 3).reshape(b, t, h * d)


class Layer(nn.Module):
    def __init__(self, kind, width, heads, cross):
        super().__init__()
        self.self_mha = kind(width, heads)
        self.cross_mha = kind(width, heads) if cross else None
        self.ff = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(self, x, memory=None, memory_padding=None, padding=None, future=None):
        x = self.norms[0](x + self.self_mha(x, None, padding, future))
        if self.cross_mha is not None:
            x = self.norms[1](x + self.cross_mha(x, memory, memory_padding))
        return self.norms[2](x + self.ff(x))


class Translator(nn.Module):
    def __init__(self, kind, words=20, width=32, heads=4, depth=2):
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        self.encoder = nn.ModuleList(Layer(kind, width, heads, False) for _ in range(depth))
        self.decoder = nn.ModuleList(Layer(kind, width, heads, True) for _ in range(depth))
        self.width = width

    def place(self, ids):
        t = torch.arange(ids.shape[1])[:, None]
        angle = t * torch.exp(torch.arange(0, self.width, 2) * (-math.log(1e4) / self.width))
        table = torch.stack((angle.sin(), angle.cos()), -1).flatten(1)
        return self.embed(ids) * math.sqrt(self.width) + table

    def forward(self, source, target):
        keep = source != 0
        memory = self.place(source)
        for layer in self.encoder:
            memory = layer(memory, padding=keep)
        future = torch.ones(target.shape[1], target.shape[1]).tril()
        y = self.place(target)
        for layer in self.decoder:
            y = layer(y, memory, keep, future=future)
        return y @ self.embed.weight.T


def ids():
    source = torch.tensor([[3, 5, 7, 9, 11, 2, 4], [6, 8, 10, 2, 1, 0, 0]])
    target = torch.tensor([[1, 4, 6, 8, 12], [1, 13, 15, 17, 2]])
    return dict(source=source, target=target)


def asks():
    return dict(inputs=ids())


def wrong():
    torch.manual_seed(0)
    return Translator(Attention).eval()


def right():
    torch.manual_seed(0)
    return Translator(AttentionMended).eval()


def proof():
    with torch.no_grad():
        return not torch.allclose(wrong()(**ids()), right()(**ids()), atol=1e-3)


if __name__ == "__main__":
    print(proof())
