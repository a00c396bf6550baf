"""A speech encoder thins the mask of its frames by [:-2:2] twice, as a convolution thins the frames, but padding stands at the end, so short clips keep frames made of padding. Source: github.com/wenet-e2e/wenet/issues/1513"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["lengths-off-by-one", "padding-attended", "mask-other"]
words = "the mask after subsampling counts up to two frames too many in clips that are padded"


class Subsampling(nn.Module):
    """Two convolutions of kernel 3 and stride 2 over (time, mels)."""

    def __init__(self, mels, width):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU())
        self.out = nn.Linear(8 * (((mels - 1) // 2 - 1) // 2), width)

    def thin(self, mask):
        return mask[:, :, 2::2][:, :, 2::2]

    def forward(self, x, mask):
        y = self.conv(x.unsqueeze(1))
        return self.out(y.transpose(1, 2).flatten(2)), self.thin(mask)


class ReportedSubsampling(Subsampling):
    def thin(self, mask):
        return mask[:, :, :-2:2][:, :, :-2:2]


class EncoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.linear_q, self.linear_k, self.linear_v, self.linear_out = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 64), nn.SiLU(), nn.Linear(64, width))

    def forward(self, x, mask):
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.linear_q, self.linear_k, self.linear_v))
        scores = (q @ k.transpose(-2, -1)) / q.shape[-1] ** 0.5
        hidden = ~mask.unsqueeze(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1).masked_fill(hidden, 0.0)
        x = x + self.linear_out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.feed(self.norm2(x))


class SpeechEncoder(nn.Module):
    def __init__(self, subsampling, mels=16, width=32, heads=4, depth=2, longest=20):
        super().__init__()
        self.embed, self.places = subsampling(mels, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, xs, xs_lens):
        mask = (torch.arange(xs.shape[1], device=xs.device)[None] < xs_lens[:, None]).unsqueeze(1)
        x, mask = self.embed(xs, mask)
        x = x + self.places.weight[: x.shape[1]]
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x), mask


def asks():
    lengths = torch.tensor([31, 22])
    xs = torch.randn(2, 31, 16) * (torch.arange(31)[None, :, None] < lengths[:, None, None])
    return dict(inputs=dict(xs=xs, xs_lens=lengths))


def _make(subsampling):
    torch.manual_seed(0)
    return SpeechEncoder(subsampling).eval()


def wrong():
    return _make(ReportedSubsampling)


def right():
    return _make(Subsampling)


def proof():
    x = asks()["inputs"]
    alone = dict(xs=x["xs"][1:, :22], xs_lens=x["xs_lens"][1:])
    def same(m):
        together, single = m(**x)[0][1], m(**alone)[0][0]
        return torch.allclose(together[: len(single)], single, atol=1e-4)
    return same(right()) and not same(wrong())
