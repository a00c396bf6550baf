"""A translation script builds its decoder mask by triu(diagonal=1) and forgets the == 0 of training, so each target position sees only later ones. Source: github.com/hkproj/pytorch-transformer/issues/19"""
import math
import torch
import torch.nn as nn

expect = ["mask-inverted", "mask-transposed", "mask-other", "causal-off-by-one", "differs-from-reference"]
words = "the decoder mask of translation is the complement of the one of training"


class MultiHeadBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.d = heads, width // heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, q, k, v, mask):
        q, k, v = (f(x).view(x.shape[0], x.shape[1], self.heads, self.d).transpose(1, 2)
                   for f, x in ((self.w_q, q), (self.w_k, k), (self.w_v, v)))
        z = q @ k.transpose(-2, -1) / math.sqrt(self.d)
        if mask is not None:
            z = z.masked_fill(mask == 0, -1e9)
        y = z.softmax(-1) @ v
        return self.w_o(y.transpose(1, 2).contiguous().view(y.shape[0], -1, self.heads * self.d))


class EncoderBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention, self.norms = MultiHeadBlock(width, heads), nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.feed = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width))

    def forward(self, x, mask):
        n = self.norms[0](x)
        x = x + self.attention(n, n, n, mask)
        return x + self.feed(self.norms[1](x))


class DecoderBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.own, self.cross = MultiHeadBlock(width, heads), MultiHeadBlock(width, heads)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.feed = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width))

    def forward(self, x, memory, source_mask, target_mask):
        n = self.norms[0](x)
        x = x + self.own(n, n, n, target_mask)
        x = x + self.cross(self.norms[1](x), memory, memory, source_mask)
        return x + self.feed(self.norms[2](x))


class Translator(nn.Module):
    def __init__(self, mended, words=40, width=32, heads=4, pad=0):
        super().__init__()
        self.mended, self.pad = mended, pad
        self.src, self.tgt = nn.Embedding(words, width), nn.Embedding(words, width)
        self.places = nn.Embedding(32, width)
        self.encoder = nn.ModuleList(EncoderBlock(width, heads) for _ in range(2))
        self.decoder = nn.ModuleList(DecoderBlock(width, heads) for _ in range(2))
        self.project = nn.Linear(width, words)

    def forward(self, source, decoded):
        source_mask = (source != self.pad)[:, None, None].int()
        n = decoded.size(1)
        target_mask = torch.triu(torch.ones(1, n, n), diagonal=1)
        if self.mended:
            target_mask = target_mask == 0
        target_mask = target_mask.int().type_as(source_mask)
        x = self.src(source) + self.places(torch.arange(source.size(1)))
        for block in self.encoder:
            x = block(x, source_mask)
        y = self.tgt(decoded) + self.places(torch.arange(n))
        for block in self.decoder:
            y = block(y, x, source_mask, target_mask)
        return self.project(y)


def build(mended):
    torch.manual_seed(0)
    return Translator(mended).eval()


def asks():
    torch.manual_seed(1)
    source = torch.randint(1, 40, (2, 7))
    source[1, 5:] = 0
    return dict(inputs=dict(source=source, decoded=torch.randint(1, 40, (2, 6))), like=right())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = asks()["inputs"]
    b = dict(a, decoded=a["decoded"].clone())
    b["decoded"][:, -1] = (b["decoded"][:, -1] + 1) % 40
    return not torch.allclose(wrong()(**a)[:, 0], wrong()(**b)[:, 0], atol=1e-4) and torch.allclose(right()(**a)[:, 0], right()(**b)[:, 0], atol=1e-5)
