"""A global attention block of a speech separator feeds (batch, time, channels) to nn.MultiheadAttention without batch_first, so utterances of the batch attend to one another. Source: github.com/JusperLee/TDANet/issues/3"""
import math
import torch
import torch.nn as nn

expect = ["batch-and-sequence-exchanged", "batch-mixed"]
words = "attention runs over the rows of the batch instead of time"


class SinusTable(nn.Module):
    def __init__(self, width, longest=200):
        super().__init__()
        place = torch.arange(longest).float()[:, None]
        speed = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
        table = torch.zeros(longest, width)
        table[:, 0::2], table[:, 1::2] = torch.sin(place * speed), torch.cos(place * speed)
        self.register_buffer("table", table)

    def forward(self, x):
        return x + self.table[: x.size(1)]


class TimeAttention(nn.Module):
    def __init__(self, width, heads, batch_first):
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.places = SinusTable(width)
        self.mix = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=batch_first)
        self.after = nn.LayerNorm(width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):                       # (batch, channels, time)
        seq = self.places(self.before(x.transpose(1, 2)))
        mixed, _ = self.mix(seq, seq, seq)
        return self.after(seq + self.drop(mixed)).transpose(1, 2)


class GlobalBlock(nn.Module):
    def __init__(self, width=32, heads=4, batch_first=False):
        super().__init__()
        self.attention = TimeAttention(width, heads, batch_first)
        self.up = nn.Conv1d(width, 2 * width, 1)
        self.down = nn.Conv1d(2 * width, width, 1)

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.down(torch.relu(self.up(x)))


def build(batch_first):
    torch.manual_seed(0)
    return GlobalBlock(batch_first=batch_first).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 32, 7)), layout="b c t")


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = torch.randn(2, 32, 7)
    y = x.clone()
    y[1] = torch.randn(32, 7)
    a, b = wrong(), right()
    return not torch.allclose(a(x)[0], a(y)[0], atol=1e-4) and torch.allclose(b(x)[0], b(y)[0], atol=1e-4)
