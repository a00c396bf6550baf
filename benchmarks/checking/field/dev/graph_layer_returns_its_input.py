"""The last graph attention layer, which does not concatenate, returns the projected features and not what attention made of them. Source: github.com/recolyce/HistoCell/issues/3"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["output-lost"]
words = "with concat=False the layer returns its projected input; the weighted sum is computed and dropped"


class GraphAttention(nn.Module):
    def __init__(self, inputs, outputs, concat=True, slope=0.2):
        super().__init__()
        self.concat = concat
        self.w = nn.Parameter(torch.randn(inputs, outputs) / inputs ** 0.5)
        self.a = nn.Parameter(torch.randn(2 * outputs, 1) / outputs ** 0.5)
        self.leaky = nn.LeakyReLU(slope)

    def last(self, h, h_prime):
        return h_prime

    def forward(self, x, adjacency):
        h = x @ self.w
        n = h.shape[-1]
        e = self.leaky(h @ self.a[:n] + (h @ self.a[n:]).transpose(-2, -1))
        weights = F.softmax(e.masked_fill(adjacency == 0, -9e15), dim=-1)
        h_prime = weights @ h
        return F.elu(h_prime) if self.concat else self.last(h, h_prime)


class ReportedAttention(GraphAttention):
    def last(self, h, h_prime):
        return h


class CellGraph(nn.Module):
    def __init__(self, layer, features=14, hidden=8, heads=3, out=16):
        super().__init__()
        self.heads = nn.ModuleList(layer(features, hidden) for _ in range(heads))
        self.final = layer(heads * hidden, out, concat=False)
        self.cell_type = nn.Linear(out, 6)

    def forward(self, x, adjacency):
        x = torch.cat([head(x, adjacency) for head in self.heads], dim=-1)
        return self.cell_type(F.elu(self.final(x, adjacency)))


def asks():
    near = torch.rand(7, 7) < 0.4
    adjacency = (near | near.t() | torch.eye(7, dtype=torch.bool)).float()
    return dict(inputs=dict(x=torch.randn(7, 14), adjacency=adjacency))


def _make(layer):
    torch.manual_seed(0)
    return CellGraph(layer).eval()


def wrong():
    return _make(ReportedAttention)


def right():
    return _make(GraphAttention)


def proof():
    x = asks()["inputs"]
    bad, good = wrong(), right()
    first, second = bad(**x), good(**x)
    with torch.no_grad():
        bad.final.a.mul_(-3)
        good.final.a.mul_(-3)
    return torch.equal(first, bad(**x)) and not torch.allclose(second, good(**x), atol=1e-4)
