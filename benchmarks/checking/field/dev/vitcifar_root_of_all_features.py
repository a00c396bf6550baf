"""A small ViT divides scores by the root of all features instead of a head's. Source: github.com/omihub777/ViT-CIFAR/pull/12"""
import torch
from torch import nn

expect = ["scale-model-width"]
words = "sqrt(width) with four heads"


class MHSA(nn.Module):
    def __init__(self, width, heads, slip):
        super().__init__()
        self.heads = heads
        self.root = width ** 0.5 if slip else (width // heads) ** 0.5
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        b, n, f = x.size()
        q, k, v = (m(x).view(b, n, self.heads, f // self.heads).transpose(1, 2) for m in (self.q, self.k, self.v))
        score = torch.softmax(torch.einsum("bhif,bhjf->bhij", q, k) / self.root, dim=-1)
        return self.o(torch.einsum("bhij,bhjf->bihf", score, v).flatten(2))


class Block(nn.Module):
    def __init__(self, slip, width=48, heads=4):
        super().__init__()
        self.la1, self.la2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.msa = MHSA(width, heads, slip)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.GELU())

    def forward(self, x):
        x = self.msa(self.la1(x)) + x
        return self.mlp(self.la2(x)) + x


def make(slip):
    torch.manual_seed(16)
    return Block(slip).eval()


def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 9, 48)))


def wrong(): return make(True)
def right(): return make(False)


def proof():
    x = asks()["inputs"]["x"]
    return wrong().msa.root == 2 * right().msa.root and not torch.allclose(wrong()(x), right()(x), atol=1e-4)
