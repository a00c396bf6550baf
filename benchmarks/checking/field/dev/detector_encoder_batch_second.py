"""The encoder of a detector flattens its map to (batch, pixels, channels), but its nn.MultiheadAttention lacks batch_first=True. Source: github.com/om-ai-lab/OmDet/issues/19"""
import torch
from torch import nn
import torch.nn.functional as F

expect = ["batch-and-sequence-exchanged", "batch-mixed"]
words = "each pixel attends to the same pixel of the other images of the batch"


def grid_positions(w, h, width, base=10000.0):
    y, x = torch.meshgrid(torch.arange(h).float(), torch.arange(w).float(), indexing="ij")
    rate = base ** -(torch.arange(width // 4).float() / (width // 4))
    x, y = x.reshape(-1, 1) * rate, y.reshape(-1, 1) * rate
    return torch.cat((x.sin(), x.cos(), y.sin(), y.cos()), dim=1)[None]


class Layer(nn.Module):
    def __init__(self, width, heads, hidden, **how):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, 0.0, **how)
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm_a, self.norm_b = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, pixels, place):
        q = k = pixels + place
        pixels = self.norm_a(pixels + self.attention(q, k, value=pixels, need_weights=False)[0])
        return self.norm_b(pixels + self.second(F.gelu(self.first(pixels))))


class HybridEncoder(nn.Module):
    """Attention within the smallest map, which is then added to the larger one."""

    def __init__(self, channels=(16, 24), width=32, heads=4, **how):
        super().__init__()
        self.project = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, width, 1, bias=False), nn.BatchNorm2d(width)) for c in channels)
        self.layer = Layer(width, heads, 64, **how)
        self.lateral = nn.Conv2d(width, width, 1)
        self.fuse = nn.Conv2d(2 * width, width, 3, padding=1)

    def forward(self, large, small):
        large, small = self.project[0](large), self.project[1](small)
        b, c, h, w = small.shape
        pixels = self.layer(small.flatten(2).transpose(1, 2), grid_positions(w, h, c))
        small = self.lateral(pixels.transpose(1, 2).reshape(b, c, h, w))
        grown = F.interpolate(small, scale_factor=2.0, mode="nearest")
        return self.fuse(torch.cat((grown, large), dim=1)), small


def asks():
    return dict(inputs=dict(large=torch.randn(2, 16, 6, 4), small=torch.randn(2, 24, 3, 2)))


def wrong():
    torch.manual_seed(0)
    return HybridEncoder().eval()


def right():
    torch.manual_seed(0)
    return HybridEncoder(batch_first=True).eval()


def proof():
    given = asks()["inputs"]
    alone = {name: x[:1] for name, x in given.items()}
    with torch.no_grad():
        bad, good = wrong(), right()
        return (torch.allclose(good(**given)[1][:1], good(**alone)[1], atol=1e-5)
                and not torch.allclose(bad(**given)[1][:1], bad(**alone)[1], atol=1e-3))


if __name__ == "__main__":
    print(proof())
