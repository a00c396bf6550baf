"""Scores are divided by d ** -0.5, so they grow instead of shrinking. Source: github.com/esceptico/perceiver-io/issues/9"""
import torch
from torch import nn

expect = ["scale-inverted"]
words = "the scale is already 1/sqrt(d) and scores are divided by it, so they are multiplied by sqrt(d)"


class LatentReader(nn.Module):
    """Perceiver IO: a few latents read a longer array of inputs."""

    def __init__(self, latent_width=32, input_width=24, heads=4, width=32):
        super().__init__()
        self.heads = heads
        self.head_width = width // heads
        self.factor = self.head_width ** -0.5
        self.query_norm, self.input_norm = nn.LayerNorm(latent_width), nn.LayerNorm(input_width)
        self.q = nn.Linear(latent_width, width)
        self.k = nn.Linear(input_width, width)
        self.v = nn.Linear(input_width, width)
        self.project = nn.Linear(width, latent_width)

    def split(self, x):
        b, n, _ = x.shape
        return x.reshape(b, n, self.heads, self.head_width).permute(0, 2, 1, 3)

    def energy(self, q, k):
        return (q @ k.transpose(-2, -1)) / self.factor

    def forward(self, latents, inputs):
        inputs = self.input_norm(inputs)
        q = self.split(self.q(self.query_norm(latents)))
        k, v = self.split(self.k(inputs)), self.split(self.v(inputs))
        w = self.energy(q, k).softmax(dim=-1)
        y = (w @ v).permute(0, 2, 1, 3).flatten(2)
        return latents + self.project(y)


class Mended(LatentReader):
    def energy(self, q, k):
        return (q @ k.transpose(-2, -1)) * self.factor


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(latents=torch.randn(2, 5, 32), inputs=torch.randn(2, 9, 24)))


def wrong():
    torch.manual_seed(0)
    return LatentReader().eval()


def right():
    torch.manual_seed(0)
    return Mended().eval()


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-3)
