"""The spatial encoder of a batched graph transformer fills everything outside a small graph with -inf, whole rows included. Source: github.com/dmlc/dgl/issues/5476"""
import intently as it
import torch
import torch.nn as nn

expect = ["nan-without-keys", "nan-with-keys"]
words = "rows of missing nodes are all -inf, hence NaN, and the next layer spreads NaN to every node of the graph"


class SpatialEncoder(nn.Module):
    def __init__(self, heads, mended, furthest=5):
        super().__init__()
        self.heads, self.mended, self.furthest = heads, mended, furthest
        self.table = nn.Embedding(furthest + 2, heads, padding_idx=0)

    def forward(self, distances, nodes):
        most = max(nodes)
        out = []
        for d, n in zip(distances, nodes):
            code = self.table(d[:n, :n].clamp(min=-1, max=self.furthest) + 1)
            full = torch.full((most, most, self.heads), float("-inf"))
            if self.mended:
                full[n:, :n] = 0.0                       # missing nodes read real ones
            full[:n, :n] = code
            out.append(full)
        return torch.stack(out)


class NodeHeads(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, bias):
        b, n, c = x.shape
        q, k, v = (f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) * (c // self.heads) ** -0.5 + bias.permute(0, 3, 1, 2)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))


class NodeLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = NodeHeads(width, heads)
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x, bias):
        x = self.n1(x + self.attention(x, bias))
        return self.n2(x + self.feed(x))


class GraphNet(nn.Module):
    def __init__(self, mended, width=24, heads=3):
        super().__init__()
        self.node = nn.Linear(8, width)
        self.spatial = SpatialEncoder(heads, mended)
        self.layers = nn.ModuleList(NodeLayer(width, heads) for _ in range(2))
        self.label = nn.Linear(width, 5)

    def forward(self, features, distances, nodes):
        x, bias = self.node(features), self.spatial(distances, nodes)
        for layer in self.layers:
            x = layer(x, bias)
        return self.label(x)


def build(mended):
    torch.manual_seed(0)
    return GraphNet(mended).eval()


def asks():
    torch.manual_seed(1)
    i = torch.arange(7)
    distances = (i[:, None] - i[None]).abs().repeat(2, 1, 1)
    features = torch.randn(2, 7, 8)
    features[1, 4:] = 0
    distances[1, 4:], distances[1, :, 4:] = -1, -1
    return dict(inputs=dict(features=features, distances=distances, nodes=[7, 4]), mask=it.padding([7, 4]))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = asks()["inputs"]
    return bool(wrong()(**x)[1, :4].isnan().all()) and bool(right()(**x).isfinite().all())
