"""A speech encoder shifts position scores made of T distances as if there were 2T - 1, so the upper triangle holds scores of the next query, and scales by the model's width. Source: github.com/openspeech-team/openspeech/pull/182"""
import math

import torch
import torch.nn as nn

expect = ["scores-of-other-queries", "scale-model-width"]
words = "relative shift of T columns takes scores of query i + 1 for later keys; scores are divided by sqrt(model width)"


def waves(positions, width):
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    angles = positions[:, None] * rates
    table = torch.zeros(len(positions), width)
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    return table


class RelativeHeads(nn.Module):
    def __init__(self, width, heads, mended):
        super().__init__()
        self.heads, self.each, self.mended = heads, width // heads, mended
        self.root = math.sqrt(self.each if mended else width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.p = nn.Linear(width, width, bias=False)
        self.content = nn.Parameter(torch.randn(heads, self.each) * 0.3)
        self.position = nn.Parameter(torch.randn(heads, self.each) * 0.3)
        self.out = nn.Linear(width, width)

    def shifted(self, s):
        b, h, t, n = s.shape
        s = torch.cat([s.new_zeros(b, h, t, 1), s], -1).view(b, h, n + 1, t)
        s = s[:, :, 1:].reshape(b, h, t, n)
        return s[..., :t] if self.mended else s

    def forward(self, x):
        b, t, c = x.shape
        if self.mended:
            where = torch.arange(t - 1, -t, -1.0)
        else:
            where = torch.arange(float(t))
        p = self.p(waves(where, c)).view(1, -1, self.heads, self.each).permute(0, 2, 3, 1)
        q = self.q(x).view(b, t, self.heads, self.each)
        k = self.k(x).view(b, t, self.heads, self.each).permute(0, 2, 3, 1)
        v = self.v(x).view(b, t, self.heads, self.each).transpose(1, 2)
        by_content = (q + self.content).transpose(1, 2) @ k
        by_position = self.shifted((q + self.position).transpose(1, 2) @ p)
        weights = ((by_content + by_position) / self.root).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, t, c))


class SpeechBlock(nn.Module):
    def __init__(self, width, heads, mended):
        super().__init__()
        self.n = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.half1 = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
        self.half2 = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
        self.attention = RelativeHeads(width, heads, mended)
        self.point = nn.Conv1d(width, 2 * width, 1)
        self.depth = nn.Conv1d(width, width, 3, padding=1, groups=width)
        self.batch = nn.BatchNorm1d(width)

    def forward(self, x):
        x = x + 0.5 * self.half1(self.n[0](x))
        x = x + self.attention(self.n[1](x))
        y = nn.functional.glu(self.point(self.n[2](x).transpose(1, 2)), 1)
        x = x + nn.functional.silu(self.batch(self.depth(y))).transpose(1, 2)
        return self.n[3](x + 0.5 * self.half2(x))


class SpeechEncoder(nn.Module):
    def __init__(self, mended):
        super().__init__()
        self.frames = nn.Linear(10, 32)
        self.blocks = nn.Sequential(*(SpeechBlock(32, 4, mended) for _ in range(2)))
        self.letters = nn.Linear(32, 7)

    def forward(self, x):
        return self.letters(self.blocks(self.frames(x)))


def build(mended):
    torch.manual_seed(0)
    return SpeechEncoder(mended).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 8, 10)))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-4)
