"""Causal cross-attention of a few latents to a longer text cuts its triangular mask at the top left, so latent i sees only the first i + 1 tokens. Source: github.com/nguynking/CS224N/issues/1"""
import torch
import torch.nn as nn
import torch.nn.functional as F
import intently as it

expect = ["mask-top-left", "cross-causal", "mask-other"]
words = "the first rows of a square triangle are used where queries are fewer than keys: most of the text is hidden from every latent"


class CausalCross(nn.Module):
    def __init__(self, width=32, heads=4, longest=16):
        super().__init__()
        self.heads = heads
        self.key, self.query, self.value, self.proj = (nn.Linear(width, width) for _ in range(4))
        self.drop = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(longest, longest))[None, None])

    def hide(self, z):
        return z.masked_fill(self.mask[:, :, : z.shape[-2], : z.shape[-1]] == 0, -1e10)

    def forward(self, text, latents):
        b, s, c = text.shape
        t = latents.shape[1]
        k = self.key(text).view(b, s, self.heads, -1).transpose(1, 2)
        v = self.value(text).view(b, s, self.heads, -1).transpose(1, 2)
        q = self.query(latents).view(b, t, self.heads, -1).transpose(1, 2)
        w = F.softmax(self.hide(q @ k.transpose(-2, -1) / (c // self.heads) ** 0.5), -1)
        return self.drop(self.proj((w @ v).transpose(1, 2).reshape(b, t, c)))


class CausalCrossMended(CausalCross):
    def hide(self, z):
        t, s = z.shape[-2:]
        return z.masked_fill(self.mask[:, :, s - t : s, :s] == 0, -1e10)


class DownProject(nn.Module):
    def __init__(self, cross, width=32, latents=3):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, latents, width))
        self.text_norm, self.latent_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.cross = cross(width)
        self.feed = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, text):
        x = self.latents.expand(len(text), -1, -1)
        x = x + self.cross(self.text_norm(text), self.latent_norm(x))
        return x + self.feed(self.norm(x))


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(text=torch.randn(2, 8, 32)), mask=it.causal())


def wrong():
    torch.manual_seed(0)
    return DownProject(CausalCross).eval()


def right():
    torch.manual_seed(0)
    return DownProject(CausalCrossMended).eval()


def proof():
    x = asks()["inputs"]["text"]
    y = x.clone()
    y[:, 3:] = y[:, 3:].flip(-1)
    return torch.allclose(wrong()(x), wrong()(y)) and not torch.allclose(right()(x), right()(y), atol=1e-4)
