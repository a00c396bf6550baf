"""A Swin V2 block rolls its map and pads it to whole windows afterwards, while the mask of shifted windows expects the rolled rows at the very end. Source: github.com/huggingface/pytorch-image-models/issues/2438"""
import math
import torch
from torch import nn
from torch.nn import functional as F

expect = ["mask-other", "mask-missing"]
words = "padding after the roll moves the rows that came round away from where the mask puts their border, so opposite edges of the image attend to each other"


class CosineWindows(nn.Module):
    def __init__(self, width, heads, window):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.logit_scale = nn.Parameter(torch.full((heads, 1, 1), math.log(10.0)))
        self.cpb = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, heads, bias=False))
        at = torch.cartesian_prod(torch.arange(window), torch.arange(window)).float()
        apart = 8 * (at[:, None] - at[None]) / (window - 1)
        self.register_buffer("apart", apart.sign() * torch.log2(apart.abs() + 1) / 3)

    def forward(self, x, mask):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        scores = scores * self.logit_scale.clamp(max=math.log(100.0)).exp()
        scores = scores + 16 * torch.sigmoid(self.cpb(self.apart)).permute(2, 0, 1)
        windows = mask.shape[0]
        scores = scores.view(b // windows, windows, self.heads, n, n).masked_fill(~mask[:, None], float("-inf"))
        y = scores.view(b, self.heads, n, n).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, n, c))


class Block(nn.Module):
    def __init__(self, width=32, heads=4, window=4, shift=2):
        super().__init__()
        self.window, self.shift = window, shift
        self.attention = CosineWindows(width, heads, window)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def cut(self, x):
        b, h, w, c = x.shape
        m = self.window
        return x.view(b, h // m, m, w // m, m, c).transpose(2, 3).reshape(-1, m * m, c)

    def uncut(self, x, b, h, w):
        m = self.window
        return x.view(b, h // m, w // m, m, m, -1).transpose(2, 3).reshape(b, h, w, -1)

    def mask(self, h, w, real):
        """Pixels of a window see one another if they were neighbours before the roll; real is (1, h, w, 1)."""
        row, col = torch.zeros(h), torch.zeros(w)
        if self.shift:
            for line, n in ((row, h), (col, w)):
                line[n - self.window:] = 1
                line[n - self.shift:] = 2
        region = (3 * row[:, None] + col[None]).view(1, h, w, 1)
        region = self.cut(torch.where(real, region, torch.full_like(region, 9.0)))[..., 0]
        return region[:, :, None] == region[:, None, :]

    def enter(self, x):
        m, s = self.window, self.shift
        x = F.pad(x, (0, 0, 0, -x.shape[2] % m, 0, -x.shape[1] % m))
        return x.roll((-s, -s), (1, 2))

    def leave(self, x, h, w):
        return x.roll((self.shift, self.shift), (1, 2))[:, :h, :w]

    def forward(self, x):
        b, h, w, c = x.shape
        real = self.enter(torch.ones(1, h, w, 1)) > 0
        y = self.enter(x)
        high, wide = y.shape[1:3]
        y = self.attention(self.cut(y), self.mask(high, wide, real))
        x = x + self.norm1(self.leave(self.uncut(y, b, high, wide), h, w))
        return x + self.norm2(self.feed(x))


class ReportedBlock(Block):
    def enter(self, x):
        m, s = self.window, self.shift
        x = x.roll((-s, -s), (1, 2))
        return F.pad(x, (0, 0, 0, -x.shape[2] % m, 0, -x.shape[1] % m))

    def leave(self, x, h, w):
        return x[:, :h, :w].roll((self.shift, self.shift), (1, 2))


def asks():
    return dict(inputs=dict(x=torch.randn(2, 7, 7, 32)), scale=10.0)


def _make(cls):
    torch.manual_seed(0)
    return cls().eval()


def wrong():
    return _make(ReportedBlock)


def right():
    return _make(Block)


def proof():
    x = asks()["inputs"]["x"]
    far = x.clone()
    far[:, 6] += 1                                 # the last row
    same = lambda m: torch.allclose(m(x)[:, 0], m(far)[:, 0], atol=1e-5)
    return same(right()) and not same(wrong())
