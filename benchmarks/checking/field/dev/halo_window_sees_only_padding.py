"""The mask is True for pixels inside the picture, and these are filled: only the padding around it is seen. Source: github.com/lucidrains/halonet-pytorch/issues/4"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ['mask-inverted']
words = "the mask of a block's surroundings is inverted: pixels are hidden, padding is seen"


class HaloWindows(nn.Module):
    """Blocks of a feature map attend to their surroundings."""

    def __init__(self, channels, block, halo, heads, head_width):
        super().__init__()
        self.block, self.halo, self.heads = block, halo, heads
        self.scale = head_width ** -0.5
        self.q = nn.Linear(channels, heads * head_width, bias=False)
        self.kv = nn.Linear(channels, 2 * heads * head_width, bias=False)
        self.out = nn.Linear(heads * head_width, channels)

    def hidden(self, inside):
        return inside

    def forward(self, x):
        b, c, h, w = x.shape
        p, r, n = self.block, self.halo, self.heads
        around = dict(kernel_size=p + 2 * r, stride=p, padding=r)
        own = F.unfold(x, kernel_size=p, stride=p).view(b, c, p * p, -1).permute(0, 3, 2, 1)      # b blocks pixels c
        near = F.unfold(x, **around).view(b, c, (p + 2 * r) ** 2, -1).permute(0, 3, 2, 1)
        inside = F.unfold(torch.ones(1, 1, h, w), **around).bool().transpose(1, 2)[:, :, None, None]
        split = lambda z: z.unflatten(-1, (n, -1)).transpose(2, 3)                                # b blocks heads pixels d
        q = split(self.q(own))
        k, v = map(split, self.kv(near).chunk(2, dim=-1))
        s = q @ k.transpose(-1, -2) * self.scale
        s = s.masked_fill(self.hidden(inside), -torch.finfo(s.dtype).max)
        y = self.out((s.softmax(-1) @ v).transpose(2, 3).flatten(3))
        y = y.permute(0, 3, 2, 1).reshape(b, c * p * p, -1)
        return F.fold(y, (h, w), kernel_size=p, stride=p)


class Mended(HaloWindows):
    def hidden(self, inside):
        return ~inside


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 16, 6, 6)))


def wrong(kind=HaloWindows):
    torch.manual_seed(0)
    return kind(16, 3, 1, 2, 8).eval()


def right():
    return wrong(Mended)


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-3)
