"""Shifted windows on a globe: the mask also separates what the roll brought together across the date line. Source: github.com/NVIDIA/physicsnemo/issues/1599"""
import torch
from torch import nn

expect = ["mask-other", "differs-from-reference"]
words = "longitude is cyclic, so windows that wrap around it must not be masked; the mask hides real neighbours"


class GlobeWindows(nn.Module):
    def __init__(self, fixed, size=(4, 8), window=(2, 4), shift=(1, 2), width=16, heads=2):
        super().__init__()
        self.size, self.window, self.shift, self.heads = size, window, shift, heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        regions, n = torch.zeros(1, *size, 1), 0
        lat = (slice(0, -window[0]), slice(-window[0], -shift[0]), slice(-shift[0], None))
        lon = (slice(None),) if fixed else (slice(0, -window[1]), slice(-window[1], -shift[1]), slice(-shift[1], None))
        for i in lat:
            for j in lon:
                regions[:, i, j] = n
                n += 1
        ids = self._part(regions).squeeze(-1)
        self.register_buffer("mask", (ids[:, :, None] - ids[:, None]).ne(0) * -100.0)

    def _part(self, x):
        b, (h, w), (m, n) = len(x), self.size, self.window
        return x.view(b, h // m, m, w // n, n, -1).transpose(2, 3).reshape(-1, m * n, x.shape[-1])

    def _join(self, x, b):
        (h, w), (m, n) = self.size, self.window
        return x.view(b, h // m, w // n, m, n, -1).transpose(2, 3).reshape(b, h, w, -1)

    def forward(self, x):
        b, l, c = x.shape
        x = x.view(b, *self.size, c).roll((-self.shift[0], -self.shift[1]), (1, 2))
        x = self._part(x)
        q, k, v = self.qkv(x).view(len(x), x.shape[1], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        z = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        z = z.view(b, -1, *z.shape[1:]) + self.mask[None, :, None]
        y = z.flatten(0, 1).softmax(-1) @ v
        y = self._join(self.out(y.transpose(1, 2).flatten(2)), b)
        return y.roll(self.shift, (1, 2)).view(b, l, c)


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 32, 16)), like=right())


def _make(fixed):
    torch.manual_seed(0)
    return GlobeWindows(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    """Of one parallel, the last longitude sees the first one in the mended module only."""
    x = asks()["inputs"]["x"]
    other = x.clone()
    other.view(2, 4, 8, 16)[:, 1, 0] += 1
    moved = [not torch.allclose(m(x).view(2, 4, 8, 16)[:, 1, 7], m(other).view(2, 4, 8, 16)[:, 1, 7], atol=1e-6) for m in (wrong(), right())]
    return moved == [False, True]
