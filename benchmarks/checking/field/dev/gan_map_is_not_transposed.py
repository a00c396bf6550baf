"""Self-attention of an image GAN: values times the map, whose transposition is written permute(0, 1, 2) and does nothing. Source: github.com/heykeetae/Self-Attention-GAN/issues/11"""
import torch
from torch import nn

expect = ["softmax-over-queries", "projections-exchanged"]
words = "an output pixel sums over the queries that look at it; its weights do not sum to 1"


def asks():
    return dict(inputs=dict(x=torch.randn(2, 16, 3, 3)), scale=1.0)


class MapAttention(nn.Module):
    def __init__(self, channels, order):
        super().__init__()
        self.order = order
        self.theta, self.phi = nn.Conv2d(channels, channels // 2, 1), nn.Conv2d(channels, channels // 2, 1)
        self.g = nn.Conv2d(channels, channels, 1)
        self.gamma = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        b, c, h, w = x.shape
        asked = self.theta(x).view(b, -1, h * w).permute(0, 2, 1)
        shown = self.phi(x).view(b, -1, h * w)
        weights = torch.bmm(asked, shown).softmax(dim=-1)              # b, pixel that asks, pixel asked
        values = self.g(x).view(b, -1, h * w)
        y = torch.bmm(values, weights.permute(*self.order))
        return self.gamma * y.view(b, c, h, w) + x


def make(order):
    torch.manual_seed(7)
    m = MapAttention(16, order)
    for conv in (m.theta, m.phi):
        nn.init.normal_(conv.weight, std=0.3)
    return m.eval()


def wrong():
    return make((0, 1, 2))


def right():
    return make((0, 2, 1))


def proof():
    x = torch.randn(2, 16, 3, 3)
    apart = []
    for m in (wrong(), right()):
        nn.init.zeros_(m.g.weight)
        nn.init.ones_(m.g.bias)
        apart.append(((m(x) - x) / m.gamma - 1).abs().max().item())      # constant values must come out unchanged
    return apart[0] > 1e-2 and apart[1] < 1e-5
