"""A graph attention layer scores source and target nodes with one vector in place of two. Source: github.com/pyg-team/pytorch_geometric/issues/1642"""
import torch
from torch import nn
from torch.nn import functional as F

expect = []
words = "scores of an edge are symmetric: the half of the attention vector for the target node is also used for the source"


class GraphAttention(nn.Module):
    """GAT on a dense adjacency matrix: x (n, c), adjacency (n, n) with adjacency[i, j] true if i hears j."""

    def __init__(self, c_in=16, c_out=8, heads=3):
        super().__init__()
        self.heads, self.c_out = heads, c_out
        self.lin = nn.Linear(c_in, heads * c_out, bias=False)
        self.att_l = nn.Parameter(torch.randn(1, heads, c_out) * 0.5)
        self.att_r = nn.Parameter(torch.randn(1, heads, c_out) * 0.5)
        self.bias = nn.Parameter(torch.zeros(heads * c_out))

    def ends(self, x):
        a = (x * self.att_l).sum(dim=-1)
        return a, a

    def forward(self, x, adjacency):
        x = self.lin(x).view(-1, self.heads, self.c_out)
        source, target = self.ends(x)
        e = F.leaky_relu(target[:, None, :] + source[None, :, :], 0.2)
        e = e.masked_fill(~adjacency[:, :, None], float("-inf"))
        alpha = e.softmax(dim=1)
        return torch.einsum("ijh,jhc->ihc", alpha, x).flatten(1) + self.bias


class Mended(GraphAttention):
    def ends(self, x):
        return (x * self.att_l).sum(dim=-1), (x * self.att_r).sum(dim=-1)


def asks():
    import intently as it

    torch.manual_seed(1)
    adjacency = torch.rand(9, 9) < 0.4
    adjacency |= torch.eye(9, dtype=torch.bool)
    return dict(inputs=dict(x=torch.randn(9, 16), adjacency=adjacency), mask=it.allowed(adjacency))


def wrong():
    torch.manual_seed(0)
    return GraphAttention().eval()


def right():
    torch.manual_seed(0)
    return Mended().eval()


def proof():
    x = asks()["inputs"]
    # with one vector the target's part cancels in the softmax only before leaky_relu, so outputs differ
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-3)
