"""After attention over (batch * heads), the result is viewed as (heads, batch, ...), so outputs of the texts of a batch are mixed. Source: github.com/gazelle93/Transformer-Various-Positional-Encoding/issues/1"""
import torch
from torch import nn

expect = ["batch-mixed", "merged-by-reshape"]
words = "the tensor is (batch * heads, time, d), and is read as (heads, batch, time, d) before heads are joined"


class FoldedAttention(nn.Module):
    def __init__(self, width=32, heads=4, p=0.1):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.q_layer = nn.Linear(width, width)
        self.k_layer = nn.Linear(width, width)
        self.v_layer = nn.Linear(width, width)
        self.out_layer = nn.Linear(width, width)
        self.drop = nn.Dropout(p)

    def fold(self, x):
        b, t, _ = x.shape
        return x.view(b, t, self.heads, self.size).permute(0, 2, 1, 3).reshape(b * self.heads, t, self.size)

    def join(self, y, b):
        y = y.view(self.heads, b, -1, self.size).permute(0, 2, 1, 3)
        return y.contiguous().view(b, -1, self.heads * self.size)

    def forward(self, query, key, value):
        b = query.size(0)
        q = self.fold(self.q_layer(query))
        k = self.fold(self.k_layer(key))
        v = self.fold(self.v_layer(value))
        w = (torch.bmm(q, k.transpose(1, 2)) / self.size ** 0.5).softmax(-1)
        return self.drop(self.out_layer(self.join(torch.bmm(w, v), b)))


class FoldedAttentionMended(FoldedAttention):
    def join(self, y, b):
        y = y.view(b, self.heads, -1, self.size).permute(0, 2, 1, 3)
        return y.contiguous().view(b, -1, self.heads * self.size)


def asks():
    return dict(inputs=dict(query=torch.randn(2, 6, 32), key=torch.randn(2, 8, 32), value=torch.randn(2, 8, 32)))


def wrong():
    torch.manual_seed(0)
    return FoldedAttention().eval()


def right():
    torch.manual_seed(0)
    return FoldedAttentionMended().eval()


def proof():
    given = asks()["inputs"]
    return not torch.allclose(wrong()(**given), right()(**given), atol=1e-3)


if __name__ == "__main__":
    print(proof())
