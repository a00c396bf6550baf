"""Regions of a shifted window are written along the wrong axes of (1, 1, H, W), so only the rows are separated. Source: github.com/zsyOAOA/ResShift/issues/81"""
import torch
from torch import nn

expect = ["mask-other", "mask-missing"]
words = "pixels from opposite sides of the image, brought together by the shift, attend to each other"


def _windows(x, w):
    b, c, h, v = x.shape
    return x.view(b, c, h // w, w, v // w, w).permute(0, 2, 4, 3, 5, 1).reshape(-1, w * w, c)


def _image(x, w, b, h, v):
    x = x.view(b, h // w, v // w, w, w, -1)
    return x.permute(0, 5, 1, 3, 2, 4).reshape(b, -1, h, v)


class ShiftedWindows(nn.Module):
    """The attention half of a Swin block, channels first."""

    def __init__(self, channels=16, heads=2, size=8, window=4, shift=2):
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.norm = nn.GroupNorm(1, channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.2)
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        apart = at[:, :, None] - at[:, None, :] + window - 1
        self.register_buffer("index", apart[0] * (2 * window - 1) + apart[1])
        self.register_buffer("region_mask", self.regions(size, size))

    def mark(self, image, rows, columns, n):
        image[:, rows, columns, :] = n

    def regions(self, h, v):
        image = torch.zeros(1, 1, h, v)
        w, s = self.window, self.shift
        parts = (slice(0, -w), slice(-w, -s), slice(-s, None))
        n = 0
        for rows in parts:
            for columns in parts:
                self.mark(image, rows, columns, n)
                n += 1
        ids = _windows(image, w).squeeze(-1)
        apart = ids[:, None, :] - ids[:, :, None]
        return apart.masked_fill(apart != 0, -100.0)

    def forward(self, x):
        b, c, h, v = x.shape
        y = torch.roll(self.norm(x), (-self.shift, -self.shift), dims=(2, 3))
        y = _windows(y, self.window)
        m, n, _ = y.shape
        q, k, z = self.qkv(y).view(m, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = q * (c // self.heads) ** -0.5 @ k.transpose(-2, -1)
        scores = scores + self.table[self.index.view(-1)].view(n, n, -1).permute(2, 0, 1)
        many = self.region_mask.shape[0]
        scores = scores.view(m // many, many, self.heads, n, n) + self.region_mask[None, :, None]
        y = scores.view(m, self.heads, n, n).softmax(-1) @ z
        y = self.proj(y.transpose(1, 2).reshape(m, n, c))
        y = torch.roll(_image(y, self.window, b, h, v), (self.shift, self.shift), dims=(2, 3))
        return x + y


class Mended(ShiftedWindows):
    def mark(self, image, rows, columns, n):
        image[:, :, rows, columns] = n


def asks():
    import intently as it

    torch.manual_seed(1)
    seen = Mended().region_mask == 0  # windows of one image; rows of the batch follow one another
    return dict(inputs=dict(x=torch.randn(2, 16, 8, 8)), mask=it.allowed(seen.repeat(2, 1, 1)[:, None]))


def wrong():
    torch.manual_seed(0)
    return ShiftedWindows().eval()


def right():
    torch.manual_seed(0)
    return Mended().eval()


def proof():
    x = asks()["inputs"]["x"]
    a, b = wrong(), right()
    return (a.region_mask == 0).sum() > (b.region_mask == 0).sum() and not torch.allclose(a(x), b(x), atol=1e-3)
