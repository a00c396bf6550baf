"""Query and value are made by reshaping the key and by the key's projection. Source: github.com/Khaliladib11/Transformer-from-scratch/issues/1"""
import torch
from torch import nn

expect = ["keys-are-queries", "values-are-keys", "values-are-queries", "query-without-influence"]
words = "copy and paste: key.reshape and self.key stand where query and value belong"


class HeadwiseAttention(nn.Module):
    """Each head's share of the input passes through a small matrix of d x d, the same for all heads."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query = nn.Linear(self.size, self.size, bias=False)
        self.value = nn.Linear(self.size, self.size, bias=False)
        self.key = nn.Linear(self.size, self.size, bias=False)
        self.last = nn.Linear(width, width)

    def roles(self, key, query, value):
        b = key.shape[0]
        k = self.key(key.reshape(b, key.shape[1], self.heads, self.size))
        q = self.key(key.reshape(b, query.shape[1], self.heads, self.size))
        v = self.key(key.reshape(b, value.shape[1], self.heads, self.size))
        return k, q, v

    def forward(self, key, query, value, mask=None):
        k, q, v = self.roles(key, query, value)
        score = torch.einsum("bihd,bjhd->bhij", q, k)
        if mask is not None:
            score = score.masked_fill(mask == 0, -1e20)
        weight = torch.softmax(score / self.size ** 0.5, dim=-1)
        return self.last(torch.einsum("bhij,bjhd->bihd", weight, v).flatten(2))


class HeadwiseAttentionMended(HeadwiseAttention):
    def roles(self, key, query, value):
        b = key.shape[0]
        k = self.key(key.reshape(b, key.shape[1], self.heads, self.size))
        q = self.query(query.reshape(b, query.shape[1], self.heads, self.size))
        v = self.value(value.reshape(b, value.shape[1], self.heads, self.size))
        return k, q, v


def asks():
    return dict(inputs=dict(key=torch.randn(2, 7, 32), query=torch.randn(2, 7, 32), value=torch.randn(2, 7, 32)))


def wrong():
    torch.manual_seed(0)
    return HeadwiseAttention().eval()


def right():
    torch.manual_seed(0)
    return HeadwiseAttentionMended().eval()


def proof():
    a = asks()["inputs"]
    b = dict(a, query=torch.randn(2, 7, 32))
    return torch.equal(wrong()(**a), wrong()(**b)) and not torch.allclose(right()(**a), right()(**b), atol=1e-3)


if __name__ == "__main__":
    print(proof())
