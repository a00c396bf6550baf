"""Deformable attention divides offsets (x, y) by (height, width) of the map. Source: github.com/fundamentalvision/Deformable-DETR/issues/6"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["differs-from-reference"]
words = "sampling offsets are normalised by (H, W) where points are (x, y), so maps that are not square are sampled elsewhere"


class DeformableAttention(nn.Module):
    def __init__(self, fixed, width=32, heads=4, points=4):
        super().__init__()
        self.fixed, self.heads, self.points = fixed, heads, points
        self.offsets = nn.Linear(width, heads * points * 2)
        self.weights = nn.Linear(width, heads * points)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, query, reference, memory, height, wide):
        """query (b, n, c), reference (b, n, 2) as (x, y) in 0 … 1, memory (b, height * wide, c)"""
        b, n, c = query.shape
        v = self.value(memory).view(b, height, wide, self.heads, -1).permute(0, 3, 4, 1, 2).flatten(0, 1)
        by = torch.tensor([wide, height] if self.fixed else [height, wide], dtype=query.dtype)
        move = self.offsets(query).view(b, n, self.heads, self.points, 2) / by
        at = (reference[:, :, None, None] + move) * 2 - 1
        at = at.transpose(1, 2).flatten(0, 1)
        seen = F.grid_sample(v, at, align_corners=False)
        w = self.weights(query).view(b, n, self.heads, self.points).softmax(-1)
        y = (seen.view(b, self.heads, -1, n, self.points) * w.transpose(1, 2).unsqueeze(2)).sum(-1)
        return self.out(y.flatten(1, 2).transpose(1, 2))


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(query=torch.randn(2, 5, 32), reference=torch.rand(2, 5, 2), memory=torch.randn(2, 24, 32), height=3, wide=8),
                like=right())


def _make(fixed):
    torch.manual_seed(0)
    m = DeformableAttention(fixed).eval()
    with torch.no_grad():
        m.offsets.weight.mul_(3)
    return m


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    return not torch.allclose(wrong()(**a), right()(**a), atol=1e-3)
