"""A speech encoder with relative positions builds its table from the largest distance downwards and takes its first rows, so all distances are near the largest. Source: github.com/espnet/espnet/pull/2816"""
import math
import torch
from torch import nn

expect = ["bias-other", "scores-other", "differs-from-reference"]
words = "the table runs from 63 to -63, and a clip of t frames takes 63, 62, ... where t - 1, ..., -(t - 1) belongs: each distance is off by 64 - t"


class RelativePositions(nn.Module):
    """Rows of a long table, from distance t - 1 (the past) to -(t - 1) (the future)."""

    def __init__(self, width, longest=64):
        super().__init__()
        frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        angle = torch.arange(longest - 1, -longest, -1)[:, None] * frequency
        self.longest = longest
        self.register_buffer("table", torch.stack((angle.sin(), angle.cos()), -1).flatten(1))

    def forward(self, t):
        return self.table[self.longest - t : self.longest + t - 1]


class ReportedPositions(RelativePositions):
    def forward(self, t):
        return self.table[: 2 * t - 1]


class RelativeAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.d = heads, width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.position = nn.Linear(width, width, bias=False)
        self.u, self.v = (nn.Parameter(torch.randn(heads, width // heads) / 3) for _ in range(2))
        self.out = nn.Linear(width, width)

    @staticmethod
    def shift(x):
        b, h, t, n = x.shape
        x = nn.functional.pad(x, (1, 0)).view(b, h, n + 1, t)
        return x[:, :, 1:].reshape(b, h, t, n)[..., : n // 2 + 1]

    def forward(self, x, table, hidden):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d).permute(2, 0, 3, 1, 4)
        r = self.position(table).view(-1, self.heads, self.d).transpose(0, 1)
        content = (q + self.u[:, None]) @ k.transpose(-2, -1)
        places = self.shift((q + self.v[:, None]) @ r.transpose(-2, -1))
        scores = (content + places) / self.d ** 0.5
        weights = scores.masked_fill(hidden[:, None, None], float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, t, c))


class SpeechEncoder(nn.Module):
    def __init__(self, positions, mels=16, width=32, heads=4, depth=2):
        super().__init__()
        self.front, self.positions = nn.Linear(mels, width), positions(width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.attentions = nn.ModuleList(RelativeAttention(width, heads) for _ in range(depth))
        self.feeds = nn.ModuleList(nn.Sequential(nn.Linear(width, 64), nn.SiLU(), nn.Linear(64, width)) for _ in range(depth))

    def forward(self, frames, lengths):
        hidden = torch.arange(frames.shape[1], device=frames.device)[None] >= lengths[:, None]
        x, table = self.front(frames), self.positions(frames.shape[1])
        for i, (attention, feed) in enumerate(zip(self.attentions, self.feeds)):
            x = x + attention(self.norms[2 * i](x), table, hidden)
            x = x + feed(self.norms[2 * i + 1](x))
        return x


def asks():
    return dict(inputs=dict(frames=torch.randn(2, 8, 16), lengths=torch.tensor([8, 6])))


def _make(positions):
    torch.manual_seed(0)
    return SpeechEncoder(positions).eval()


def wrong():
    return _make(ReportedPositions)


def right():
    return _make(RelativePositions)


def proof():
    x = asks()["inputs"]
    probe = torch.zeros(1, 1, 4, 7)
    probe[..., :] = torch.arange(7) - 3                        # row index -> minus distance i - j
    shifted = RelativeAttention.shift(probe)[0, 0]
    exact = torch.equal(shifted, (torch.arange(4)[None] - torch.arange(4)[:, None]).float())
    good, bad = right().positions, wrong().positions
    zero = torch.tensor([0.0, 1.0]).repeat(16)                 # sine and cosine of distance 0
    return (exact and torch.allclose(good(5)[4], zero) and not torch.allclose(bad(5)[4], zero, atol=0.1)
            and not torch.allclose(wrong()(**x), right()(**x), atol=1e-4))
