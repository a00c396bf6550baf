"""A graph transformer for mass spectra gives its dropout rate to scaled_dot_product_attention whatever mode it is in. Source: github.com/coleygroup/ms-pred/issues/38"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["dropout-in-eval"]
words = "weights are dropped after eval() as well: the same graph gives other outputs each time"


class BiasedHeads(nn.Module):
    def __init__(self, width, heads, dropout, mended):
        super().__init__()
        self.heads, self.dropout, self.mended = heads, dropout, mended
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))

    def cut(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x, bias):
        rate = self.dropout if self.training or not self.mended else 0.0
        y = F.scaled_dot_product_attention(self.cut(self.q_proj(x)), self.cut(self.k_proj(x)), self.cut(self.v_proj(x)),
                                           attn_mask=bias, dropout_p=rate, is_causal=False)
        return self.out_proj(y.transpose(1, 2).flatten(2))


class GraphLayer(nn.Module):
    def __init__(self, width, heads, mended):
        super().__init__()
        self.attention = BiasedHeads(width, heads, 0.2, mended)
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))

    def forward(self, x, bias):
        x = x + self.attention(self.n1(x), bias)
        return x + self.feed(self.n2(x))


class MoleculeGraph(nn.Module):
    def __init__(self, mended, width=32, heads=4):
        super().__init__()
        self.atom, self.degree = nn.Embedding(10, width), nn.Embedding(6, width)
        self.whole = nn.Parameter(torch.randn(1, 1, width) * 0.5)
        self.hops, self.to_whole = nn.Embedding(9, heads), nn.Parameter(torch.randn(1, heads, 1, 1) * 0.3)
        self.layers = nn.ModuleList(GraphLayer(width, heads, mended) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.read = nn.Linear(width, 4)

    def forward(self, atoms, degrees, hops):
        b, n = atoms.shape
        x = torch.cat([self.whole.expand(b, -1, -1), self.atom(atoms) + self.degree(degrees)], 1)
        inner = self.hops(hops).permute(0, 3, 1, 2)
        bias = self.to_whole.expand(b, -1, n + 1, n + 1).clone()
        bias[:, :, 1:, 1:] = inner
        for layer in self.layers:
            x = layer(x, bias)
        return self.read(self.norm(x)[:, 0])


def build(mended):
    torch.manual_seed(0)
    return MoleculeGraph(mended).eval()


def asks():
    torch.manual_seed(1)
    place = torch.arange(6)
    hops = (place[:, None] - place[None]).abs().expand(2, -1, -1)
    return dict(inputs=dict(atoms=torch.randint(0, 10, (2, 6)), degrees=torch.randint(1, 5, (2, 6)), hops=hops))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x, w, r = asks()["inputs"], wrong(), right()
    return not torch.allclose(w(**x), w(**x)) and torch.allclose(r(**x), r(**x))
