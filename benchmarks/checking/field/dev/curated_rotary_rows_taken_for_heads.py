"""Rotary angles picked by position (b, t, d) are multiplied with queries (b, h, t, d) as they are: head h gets the positions of row h of the batch. Source: github.com/explosion/curated-transformers/pull/151"""
import torch
from torch import nn
import intently as it

expect = ["rotary-over-heads", "rotation-other", "batch-mixed", "differs-from-reference"]
words = "with as many rows as heads the shapes agree, and a row is rotated by the positions of other rows"


class Angles(nn.Module):
    def __init__(self, width, rows_apart, base=10000):
        super().__init__()
        self.width, self.base, self.rows_apart = width, base, rows_apart
        self.grow(4)

    def grow(self, length):
        turn = torch.arange(length)[:, None] * self.base ** (-torch.arange(0, self.width, 2) / self.width)
        turn = torch.cat((turn, turn), -1)
        self.register_buffer("cos", turn.cos(), persistent=False)
        self.register_buffer("sin", turn.sin(), persistent=False)

    def forward(self, u, positions):
        if self.cos.size(0) <= int(positions.max()):
            self.grow(int(positions.max()) + 1)
        cos, sin = self.cos[positions], self.sin[positions]
        if self.rows_apart:
            cos, sin = cos[:, None], sin[:, None]
        first, second = u.chunk(2, -1)
        return cos * u + sin * torch.cat((-second, first), -1)


class RotarySelfAttention(nn.Module):
    def __init__(self, rows_apart, width=32, heads=2):
        super().__init__()
        self.heads = heads
        self.rotary = Angles(width // heads, rows_apart)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, attention_mask):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        q, k = self.rotary(q, positions), self.rotary(k, positions)
        z = q @ k.mT / q.size(-1) ** 0.5
        seen = attention_mask[:, None, None].bool() & torch.ones(t, t).tril().bool()
        w = z.masked_fill(~seen, torch.finfo(z.dtype).min).softmax(-1)
        return self.out((w @ v).transpose(1, 2).reshape(b, t, c))


def asks():
    torch.manual_seed(2)
    real = torch.ones(2, 7, dtype=torch.long)
    real[1, :3] = 0
    return dict(inputs=dict(x=torch.randn(2, 7, 32), attention_mask=real), mask=it.causal() & it.padding(real.bool()), like=right())


def make(rows_apart):
    torch.manual_seed(7)
    return RotarySelfAttention(rows_apart).eval()


def wrong():
    return make(False)


def right():
    return make(True)


@torch.no_grad()
def proof():
    x = asks()["inputs"]["x"]
    def moves(f):   # row 1 is the same in both calls, only row 0 gets padding
        full = torch.ones(2, 7, dtype=torch.long)
        padded = full.clone()
        padded[0, :3] = 0
        return float((f(x, padded)[1] - f(x, full)[1]).abs().max())
    return moves(wrong()) > 1e-3 and moves(right()) < 1e-6
