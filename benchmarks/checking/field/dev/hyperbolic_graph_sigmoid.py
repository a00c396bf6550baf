"""Attention over the neighbours of a graph passes scores through a sigmoid and the adjacency matrix, where the paper takes a softmax over neighbours. Source: github.com/HazyResearch/hgcn/issues/35"""
import torch
from torch import nn

expect = ["not-normalised"]
words = "weights are sigmoid(score) * adjacency and do not sum to 1 over the neighbours"


class DensePairs(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.pair = nn.Linear(2 * width, 1)
        self.width = width

    def weights(self, score, adjacency):
        return torch.sigmoid(score) * adjacency

    def forward(self, nodes, adjacency):
        n = nodes.shape[0]
        left = nodes[:, None].expand(n, n, self.width)
        other = nodes[None].expand(n, n, self.width)
        score = self.pair(torch.cat((left, other), dim=-1)).squeeze(-1)
        return self.weights(score, adjacency)


class DensePairsMended(DensePairs):
    def weights(self, score, adjacency):
        return score.masked_fill(adjacency == 0, float("-inf")).softmax(dim=-1)


class Aggregate(nn.Module):
    """Tangent-space layer: linear map, attention over neighbours, activation."""

    def __init__(self, kind, inner, width):
        super().__init__()
        self.linear = nn.Linear(inner, width)
        self.attention = kind(width)

    def forward(self, nodes, adjacency):
        h = self.linear(nodes)
        return torch.relu(self.attention(h, adjacency) @ h)


def graph():
    edges = [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6), (5, 6)]
    a = torch.eye(7)
    for i, j in edges:
        a[i, j] = a[j, i] = 1.0
    return a


def asks():
    return dict(inputs=dict(nodes=torch.randn(7, 16), adjacency=graph()))


def wrong():
    torch.manual_seed(0)
    return Aggregate(DensePairs, 16, 32).eval()


def right():
    torch.manual_seed(0)
    return Aggregate(DensePairsMended, 16, 32).eval()


def proof():
    given = asks()["inputs"]
    sums = wrong().attention(torch.randn(7, 32), graph()).sum(-1)
    good = right().attention(torch.randn(7, 32), graph()).sum(-1)
    return (not torch.allclose(sums, torch.ones(7), atol=1e-2) and torch.allclose(good, torch.ones(7), atol=1e-5)
            and not torch.allclose(wrong()(**given), right()(**given), atol=1e-3))


if __name__ == "__main__":
    print(proof())
