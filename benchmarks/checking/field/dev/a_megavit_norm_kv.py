"""A ViT with QK-norm normalises keys and values instead of queries and keys. Source: github.com/kyegomez/MegaVIT/issues/17"""
import torch
import torch.nn as nn
from einops import rearrange

expect = ["projection-other", "scores-other", "differs-from-reference"]
words = "layer norm lies on k and v, not on q and k"


class NormedAttention(nn.Module):
    def __init__(self, width, heads, size):
        super().__init__()
        self.heads, self.scale = heads, size ** -0.5
        self.enter = nn.LayerNorm(width)
        self.one, self.two = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv = nn.Linear(width, 3 * heads * size, bias=False)
        self.out = nn.Linear(heads * size, width)

    def normed(self, q, k, v):
        return q, self.one(k), self.two(v)

    def forward(self, x):
        q, k, v = (rearrange(a, "b n (h d) -> b h n d", h=self.heads) for a in self.qkv(self.enter(x)).chunk(3, -1))
        q, k, v = self.normed(q, k, v)
        w = (q @ k.transpose(-1, -2) * self.scale).softmax(-1)
        return self.out(rearrange(w @ v, "b h n d -> b n (h d)"))


class NormedAttentionMended(NormedAttention):
    def normed(self, q, k, v):
        return self.two(q), self.one(k), v


class Vit(nn.Module):
    def __init__(self, attention, width=32, heads=2, size=16, depth=2):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, 7, width))
        self.layers = nn.ModuleList(
            nn.ModuleList([attention(width, heads, size), nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))])
            for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 5))

    def forward(self, img):
        x = rearrange(self.patch(img), "b c h w -> b (h w) c")
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.place
        for attend, feed in self.layers:
            x = x + attend(x)
            x = x + feed(x)
        return self.head(x[:, 0])


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(img=torch.randn(2, 3, 8, 12)), like=right())


def wrong():
    torch.manual_seed(0)
    return Vit(NormedAttention).eval()


def right():
    torch.manual_seed(0)
    return Vit(NormedAttentionMended).eval()


def proof():
    i = asks()["inputs"]
    return not torch.allclose(wrong()(**i), right()(**i), atol=1e-5)
