"""Angles are tiled (a, b, a, b) and numbers are turned in neighbouring pairs, so the two of a pair turn by different angles. Source: github.com/facebookresearch/vjepa2/pull/15"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["rotary-pairs", "rotation-other"]
words = "neighbouring numbers are paired, but their angles are laid out for halves: nothing is a rotation any more"


class ClipAttention(nn.Module):
    """Self-attention over the frames and the rows of a clip, a part of each head rotated for each."""

    def __init__(self, width=48, heads=3, frames=3, rows=3):
        super().__init__()
        self.heads, self.part = heads, width // heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        at = torch.arange(frames * rows)
        self.register_buffer("frame", (at // rows).float())
        self.register_buffer("row", (at % rows).float())

    def widened(self, angles):
        return angles.repeat(1, 1, 2)

    def turned(self, x, at):
        d = x.shape[-1]
        omega = 1.0 / 100 ** (torch.arange(d // 2).float() / (d // 2))
        angles = self.widened((at[:, None] * omega)[None])
        y = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        return x * angles.cos() + y * angles.sin()

    def placed(self, x):
        a, b = x.split(self.part // 2, dim=-1)
        return torch.cat((self.turned(a, self.frame), self.turned(b, self.row)), dim=-1)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, self.part).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.placed(q), self.placed(k), v)
        return self.proj(y.transpose(1, 2).reshape(b, n, c))


class Mended(ClipAttention):
    def widened(self, angles):
        return angles.repeat_interleave(2, dim=-1)


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 9, 48)))


def wrong():
    torch.manual_seed(0)
    return ClipAttention().eval()


def right():
    torch.manual_seed(0)
    return Mended().eval()


def proof():
    x = asks()["inputs"]["x"]
    z = torch.randn(1, 1, 9, 8)
    kept = [torch.allclose(m.turned(z, m.frame).norm(dim=-1), z.norm(dim=-1), atol=1e-5) for m in (wrong(), right())]
    return kept == [False, True] and not torch.allclose(wrong()(x), right()(x), atol=1e-4)
