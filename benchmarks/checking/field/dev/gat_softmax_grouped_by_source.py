"""Graph attention over edges: the softmax is grouped by the node a message leaves, the sum by the node it reaches. Source: github.com/pyg-team/pytorch_geometric/issues/224"""
import torch
from torch import nn
import torch.nn.functional as F

expect = ["softmax-over-queries"]
words = "a node's outgoing weights sum to 1 in place of its incoming ones"

def asks():
    torch.manual_seed(0)
    source = torch.tensor([0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 0, 5, 4, 2])
    target = torch.tensor([0, 1, 2, 3, 4, 5, 1, 2, 3, 4, 4, 0, 1, 5])
    return dict(inputs=dict(x=torch.randn(6, 24), edge_index=torch.stack((source, target))))

def edge_softmax(z, index, n):
    top = z.new_full((n, z.shape[1]), float("-inf")).scatter_reduce(0, index[:, None].expand_as(z), z, "amax")
    e = (z - top[index]).exp()
    return e / e.new_zeros(n, z.shape[1]).index_add(0, index, e)[index]

class GraphAttention(nn.Module):
    def __init__(self, width, out, heads, by):
        super().__init__()
        self.lin = nn.Linear(width, heads * out, bias=False)
        self.att = nn.Parameter(torch.randn(heads, 2 * out) / 2)
        self.h, self.by = heads, by

    def forward(self, x, edge_index):
        j, i = edge_index
        y = self.lin(x).unflatten(-1, (self.h, -1))
        z = F.leaky_relu((torch.cat((y[i], y[j]), -1) * self.att).sum(-1), 0.2)
        alpha = edge_softmax(z, edge_index[self.by], len(x))
        return y.new_zeros(y.shape).index_add(0, i, y[j] * alpha.unsqueeze(-1)).flatten(1)

def wrong():
    torch.manual_seed(1)
    return GraphAttention(24, 8, 3, 0).eval()

def right():
    torch.manual_seed(1)
    return GraphAttention(24, 8, 3, 1).eval()

def proof():
    i = asks()["inputs"]
    return bool((wrong()(**i) - right()(**i)).abs().max() > .05)
