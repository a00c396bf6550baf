"""Strips of an image are laid out (batch, sequence, width), and nn.MultiheadAttention reads (sequence, batch, width). Source: github.com/aipixel/AEMatter/issues/3"""
import torch
from einops import rearrange
from torch import nn

expect = ["batch-and-sequence-exchanged", "batch-mixed"]
words = "each pixel attends to the same pixel of other strips and of other images, not to its own strip"


class StripAttention(nn.Module):
    """Half of the channels attend along horizontal strips, the other half along vertical ones."""

    batch_first = False

    def __init__(self, channels=32, strip=2, heads=2):
        super().__init__()
        self.strip = strip
        self.rows = nn.MultiheadAttention(channels // 2, heads, batch_first=self.batch_first)
        self.columns = nn.MultiheadAttention(channels // 2, heads, batch_first=self.batch_first)
        self.norm = nn.LayerNorm(channels)
        self.mix = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        y = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        top, side = y.chunk(2, dim=1)
        r = rearrange(top, "b c (n s) w -> (b n) (s w) c", s=self.strip)
        r = self.rows(r, r, r, need_weights=False)[0]
        r = rearrange(r, "(b n) (s w) c -> b c (n s) w", b=b, s=self.strip)
        k = rearrange(side, "b c h (n s) -> (b n) (h s) c", s=self.strip)
        k = self.columns(k, k, k, need_weights=False)[0]
        k = rearrange(k, "(b n) (h s) c -> b c h (n s)", b=b, s=self.strip)
        return x + self.mix(torch.cat((r, k), dim=1))


class Mended(StripAttention):
    batch_first = True


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 32, 4, 6)))


def wrong():
    torch.manual_seed(0)
    return StripAttention().eval()


def right():
    torch.manual_seed(0)
    return Mended().eval()


def proof():
    x = asks()["inputs"]["x"]
    return not torch.allclose(wrong()(x), right()(x), atol=1e-3)
