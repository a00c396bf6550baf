"""Symmetric attention warps the made-up face onto the other face with a softmax over target positions, not over source positions. Source: github.com/Snowfallingplum/SSAT/issues/5"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["softmax-over-queries"]
words = "correlation (source, target) is normalised along target, then source values are summed"


def asks():
    g = torch.Generator().manual_seed(1)
    return dict(inputs=dict(a=torch.randn(2, 16, 2, 3, generator=g), b=torch.randn(2, 16, 2, 4, generator=g), b_raw=torch.randn(2, 8, 2, 4, generator=g)), scale=10.0)


class FaceCorrespondence(nn.Module):
    def __init__(self, channels=16, alpha=10.0, dim=2):
        super().__init__()
        self.of_a, self.of_b = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.alpha, self.dim = alpha, dim

    def unit(self, f):
        f = f.flatten(2)
        f = f - f.mean(1, keepdim=True)
        return f / (f.norm(dim=1, keepdim=True) + 1e-6)

    def forward(self, a, b, b_raw):
        fa, fb = self.unit(self.of_a(a)), self.unit(self.of_b(b))
        energy = torch.bmm(fb.transpose(1, 2), fa) * self.alpha
        share = F.softmax(energy, dim=self.dim)
        return torch.bmm(b_raw.flatten(2), share).view(*b_raw.shape[:2], *a.shape[2:])


def _make(dim):
    torch.manual_seed(0)
    return FaceCorrespondence(dim=dim).eval()


def wrong():
    return _make(2)


def right():
    return _make(1)


def proof():
    a = asks()["inputs"]
    return (wrong()(**a) - right()(**a)).abs().max().item() > 1e-2


if __name__ == "__main__":
    print(proof())
