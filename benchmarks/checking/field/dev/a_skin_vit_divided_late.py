"""The attention of a ViT for segmenting skin divides by the root of the whole embedding, and does so after the softmax. Source: github.com/rezazad68/TMUnet/issues/13"""
import torch
from torch import nn

expect = ["not-normalised", "no-scale", "scale-model-width"]
words = "weights are softmax(q k) / sqrt(c): scores unscaled, rows sum to 1/sqrt(c)"


def asks():
    torch.manual_seed(3)
    return dict(inputs=dict(image=torch.randn(2, 3, 12, 12)))


class PatchMixer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.width, self.heads = width, heads
        self.fused = nn.Linear(width, 3 * width)
        self.leave = nn.Linear(width, width)

    def weigh(self, energy):
        return torch.softmax(energy, -1) / self.width ** 0.5

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.fused(x).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        energy = torch.einsum("bhid,bhjd->bhij", q, k)
        mixed = torch.einsum("bhij,bhjd->bihd", self.weigh(energy), v)
        return self.leave(mixed.flatten(2))


class PatchMixerMended(PatchMixer):
    def weigh(self, energy):
        return torch.softmax(energy / (self.width // self.heads) ** 0.5, -1)


class Block(nn.Module):
    def __init__(self, kind, width, heads):
        super().__init__()
        self.a, self.b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = kind(width, heads)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.mix(self.a(x))
        return x + self.feed(self.b(x))


class SkinViT(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 6, stride=6)
        self.first = nn.Parameter(torch.randn(1, 1, 32))
        self.places = nn.Parameter(torch.randn(5, 32))
        self.blocks = nn.Sequential(Block(kind, 32, 4), Block(kind, 32, 4))
        self.head = nn.Linear(32, 2)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.blocks(x))


def wrong():
    torch.manual_seed(0)
    return SkinViT(PatchMixer).eval()


def right():
    torch.manual_seed(0)
    return SkinViT(PatchMixerMended).eval()


def proof():
    x = asks()["inputs"]
    return bool((wrong()(**x) - right()(**x)).abs().max() > 1e-2)
