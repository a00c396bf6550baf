"""The scale is applied to the weights after the softmax, not to the scores. Source: github.com/FrancescoSaverioZuppichini/ViT/issues/2"""
import torch
from einops import rearrange
from torch import nn
from torch.nn import functional as F

expect = ["no-scale", "not-normalised"]
words = "scores are not scaled, and weights sum to 1/sqrt(d)"


class PatchAttention(nn.Module):
    def __init__(self, emb_size=32, num_heads=4, dropout=0.1):
        super().__init__()
        self.emb_size, self.num_heads = emb_size, num_heads
        self.qkv = nn.Linear(emb_size, 3 * emb_size)
        self.att_drop = nn.Dropout(dropout)
        self.projection = nn.Linear(emb_size, emb_size)
        self.scaling = (emb_size // num_heads) ** -0.5

    def weigh(self, energy):
        return F.softmax(energy, dim=-1) * self.scaling

    def forward(self, x):
        q, k, v = rearrange(self.qkv(x), "b n (three h d) -> three b h n d", three=3, h=self.num_heads)
        energy = torch.einsum("bhqd,bhkd->bhqk", q, k)
        att = self.att_drop(self.weigh(energy))
        out = torch.einsum("bhal,bhlv->bhav", att, v)
        return self.projection(rearrange(out, "b h n d -> b n (h d)"))


class MendedAttention(PatchAttention):
    def weigh(self, energy):
        return F.softmax(energy * self.scaling, dim=-1)


class TinyViT(nn.Module):
    def __init__(self, attention, size=8, patch=4, emb_size=32):
        super().__init__()
        self.patches = nn.Conv2d(3, emb_size, patch, stride=patch)
        n = (size // patch) ** 2 + 1
        self.cls, self.positions = nn.Parameter(torch.randn(1, 1, emb_size)), nn.Parameter(torch.randn(n, emb_size))
        self.norm_1, self.norm_2 = nn.LayerNorm(emb_size), nn.LayerNorm(emb_size)
        self.attention = attention(emb_size)
        self.mlp = nn.Sequential(nn.Linear(emb_size, 64), nn.GELU(), nn.Linear(64, emb_size))
        self.head = nn.Linear(emb_size, 10)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(len(x), -1, -1), x), dim=1) + self.positions
        x = x + self.attention(self.norm_1(x))
        x = x + self.mlp(self.norm_2(x))
        return self.head(x.mean(dim=1))


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(images=torch.randn(2, 3, 8, 8)))


def wrong():
    torch.manual_seed(0)
    return TinyViT(PatchAttention).eval()


def right():
    torch.manual_seed(0)
    return TinyViT(MendedAttention).eval()


def proof():
    x = asks()["inputs"]["images"]
    return not torch.allclose(wrong()(x), right()(x), atol=1e-3)
