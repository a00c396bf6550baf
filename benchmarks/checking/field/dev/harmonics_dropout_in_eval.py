"""Attention on the sphere passes its dropout to scaled_dot_product_attention in evaluation too. Source: github.com/NVIDIA/torch-harmonics/pull/221"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["dropout-in-eval"]
words = "two equal calls in eval() differ"


class SphereAttention(nn.Module):
    """Attention between the points of a latitude-longitude grid, weighted by their area."""

    def __init__(self, channels=16, heads=2, lat=3, lon=4, drop_rate=0.2):
        super().__init__()
        self.heads, self.drop_rate = heads, drop_rate
        self.q, self.k, self.v = (nn.Conv2d(channels, channels, 1) for _ in range(3))
        self.proj = nn.Conv2d(channels, channels, 1)
        theta = (torch.arange(lat) + 0.5) * torch.pi / lat
        area = theta.sin()[:, None].expand(lat, lon).flatten()
        self.register_buffer("log_area", (area / area.sum()).log()[None, None, None, :])

    def rate(self):
        return self.drop_rate

    def forward(self, x):
        b, c, n, m = x.shape
        q, k, v = (f(x).view(b, self.heads, c // self.heads, n * m).transpose(2, 3) for f in (self.q, self.k, self.v))
        bias = self.log_area.expand(b, self.heads, n * m, -1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=self.rate())
        return self.proj(y.transpose(2, 3).reshape(b, c, n, m))


class Mended(SphereAttention):
    def rate(self):
        return self.drop_rate if self.training else 0.0


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 16, 3, 4)))


def wrong():
    torch.manual_seed(0)
    return SphereAttention().eval()


def right():
    torch.manual_seed(0)
    return Mended().eval()


def proof():
    x = asks()["inputs"]["x"]
    a, b = wrong(), right()
    return not torch.allclose(a(x), a(x)) and torch.equal(b(x), b(x))
