"""Multi-head attention splits its input into heads first and then applies one small d x d projection to every head, so all heads share their weights and none sees the whole vector. Source: github.com/MarcoMeter/episodic-transformer-memory-ppo/pull/22"""
import torch
import torch.nn as nn

expect = []
words = "heads are split before the projections: one d x d matrix serves all heads, and no head reads the other heads' numbers"


class MemoryAttention(nn.Module):
    def __init__(self, width, heads, project_first):
        super().__init__()
        self.heads, self.size, self.project_first = heads, width // heads, project_first
        n = width if project_first else self.size
        self.to_v, self.to_k, self.to_q = nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False)
        self.out = nn.Linear(width, width)

    def cut(self, x, layer):
        b, t, _ = x.shape
        if self.project_first:
            return layer(x).reshape(b, t, self.heads, self.size)
        return layer(x.reshape(b, t, self.heads, self.size))

    def forward(self, query, memory, mask):
        q, k, v = self.cut(query, self.to_q), self.cut(memory, self.to_k), self.cut(memory, self.to_v)
        energy = torch.einsum("bqhd,bkhd->bhqk", q, k)
        energy = energy.masked_fill(mask[:, None, None, :] == 0, float("-1e20"))
        weights = torch.softmax(energy / self.size ** 0.5, dim=3)
        mixed = torch.einsum("bhqk,bkhd->bqhd", weights, v)
        return self.out(mixed.reshape(query.shape[0], query.shape[1], -1))


class Block(nn.Module):
    def __init__(self, width, heads, project_first):
        super().__init__()
        self.attention = MemoryAttention(width, heads, project_first)
        self.norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, width), nn.ReLU())

    def forward(self, query, memory, mask):
        h = self.norm(self.attention(query, memory, mask) + query)
        return h + self.feed(h)


def build(project_first):
    torch.manual_seed(0)
    return Block(32, 4, project_first).eval()


def asks():
    torch.manual_seed(1)
    import intently as it
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    return dict(inputs=dict(query=torch.randn(2, 1, 32), memory=torch.randn(2, 6, 32), mask=mask), mask=it.padding([4, 6]))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    return wrong().attention.to_q.weight.shape == (8, 8) and right().attention.to_q.weight.shape == (32, 32)
