"""Double attention gathers features by maps; their softmax runs over the maps of a pixel, not over pixels. Source: github.com/gjylt/DoubleAttentionNet/issues/3"""
import torch
from torch import nn
import torch.nn.functional as F

expect = ["softmax-over-queries", "not-normalised"]
words = "maps compete for each pixel; a map's weights over the image do not sum to 1"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 16, 3, 4)))

class DoubleAttention(nn.Module):
    def __init__(self, channels, c_m, c_n, over):
        super().__init__()
        self.a, self.b, self.v = nn.Conv2d(channels, c_m, 1), nn.Conv2d(channels, c_n, 1), nn.Conv2d(channels, c_n, 1)
        self.back = nn.Conv2d(c_m, channels, 1)
        self.over = over

    def forward(self, x):
        size = x.shape[-2:]
        features, maps, picks = (f(x).flatten(2) for f in (self.a, self.b, self.v))
        maps = F.softmax(maps, dim=self.over)
        picks = F.softmax(picks, dim=1)
        gathered = torch.bmm(features, maps.transpose(1, 2))
        return self.back(torch.bmm(gathered, picks).unflatten(2, size)) + x

def wrong():
    torch.manual_seed(1)
    return DoubleAttention(16, 12, 5, 1).eval()

def right():
    torch.manual_seed(1)
    return DoubleAttention(16, 12, 5, 2).eval()

def proof():
    x = asks()["inputs"]["x"]
    return bool((wrong()(x) - right()(x)).abs().max() > .05)
