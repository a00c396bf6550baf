"""A dense GAT layer normalises over the targets of each source and sums the targets into the source: messages run against the edges. Source: github.com/gordicaleksa/pytorch-GAT/issues/4"""
import torch
import torch.nn as nn

expect = ["mask-transposed", "mask-other", "differs-from-reference"]
words = "connectivity (source, target) is used as if it were (target, source): each node attends to the nodes it points to"


class DenseGat(nn.Module):
    def __init__(self, width, size, heads):
        super().__init__()
        self.heads, self.size = heads, size
        self.project = nn.Linear(width, heads * size, bias=False)
        self.as_source = nn.Parameter(torch.randn(1, heads, size) * 0.5)
        self.as_target = nn.Parameter(torch.randn(1, heads, size) * 0.5)
        self.leaky = nn.LeakyReLU(0.2)

    def scores(self, h):
        source = (h * self.as_source).sum(-1).t().unsqueeze(-1)      # (heads, source, 1)
        target = (h * self.as_target).sum(-1).t().unsqueeze(-2)      # (heads, 1, target)
        return self.leaky(source + target)

    def forward(self, nodes, edges):
        """edges[i, j] is True where there is an edge from i to j."""
        h = self.project(nodes).view(-1, self.heads, self.size)
        z = self.scores(h).masked_fill(~edges, float("-inf"))
        w = z.softmax(-1)
        y = w @ h.transpose(0, 1)
        return y.transpose(0, 1).reshape(len(nodes), -1)


class DenseGatMended(DenseGat):
    def forward(self, nodes, edges):
        h = self.project(nodes).view(-1, self.heads, self.size)
        z = self.scores(h).masked_fill(~edges, float("-inf"))
        w = z.softmax(-2)
        y = w.transpose(1, 2) @ h.transpose(0, 1)
        return y.transpose(0, 1).reshape(len(nodes), -1)


def graph():
    edges = torch.eye(7, dtype=torch.bool)
    for i, j in [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (5, 4), (6, 5), (4, 0), (2, 6)]:
        edges[i, j] = True
    return edges


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(nodes=torch.randn(7, 16), edges=graph()), like=right())


def wrong():
    torch.manual_seed(0)
    return DenseGat(16, 8, 2).eval()


def right():
    torch.manual_seed(0)
    return DenseGatMended(16, 8, 2).eval()


def proof():
    i = asks()["inputs"]
    return not torch.allclose(wrong()(**i), right()(**i), atol=1e-5)
