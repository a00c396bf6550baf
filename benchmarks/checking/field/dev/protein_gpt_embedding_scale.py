"""A workshop's protein language model scales the scores of each head by the root of the embedding width. Source: github.com/Graylab/DL4Proteins-notebooks/issues/12"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["scale-model-width"]
words = "heads are 8 wide, and scores are divided by the root of 32"


class Head(nn.Module):
    def __init__(self, width, size, longest, p):
        super().__init__()
        self.key = nn.Linear(width, size, bias=False)
        self.query = nn.Linear(width, size, bias=False)
        self.value = nn.Linear(width, size, bias=False)
        self.register_buffer("lower", torch.tril(torch.ones(longest, longest)))
        self.dropout = nn.Dropout(p)

    def factor(self, x, k):
        return x.shape[-1] ** -0.5

    def forward(self, x):
        n = x.shape[1]
        q, k = self.query(x), self.key(x)
        affinity = q.matmul(k.transpose(1, 2)) * self.factor(x, k)
        affinity = affinity.masked_fill(self.lower[:n, :n] == 0, float("-inf"))
        return self.dropout(F.softmax(affinity, dim=2)).matmul(self.value(x))


class HeadMended(Head):
    def factor(self, x, k):
        return k.shape[-1] ** -0.5


class Residue(nn.Module):
    def __init__(self, head, width, heads, longest, p):
        super().__init__()
        self.heads = nn.ModuleList([head(width, width // heads, longest, p) for _ in range(heads)])
        self.mix = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.Dropout(p))
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        h = self.one(x)
        x = x + self.mix(torch.cat([head(h) for head in self.heads], dim=-1))
        return x + self.feed(self.two(x))


class ProteinModel(nn.Module):
    def __init__(self, head, letters=22, width=32, heads=4, depth=2, longest=16, p=0.2):
        super().__init__()
        self.letter = nn.Embedding(letters, width)
        self.place = nn.Embedding(longest, width)
        self.blocks = nn.Sequential(*[Residue(head, width, heads, longest, p) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, letters)

    def forward(self, sequence):
        x = self.letter(sequence) + self.place(torch.arange(sequence.shape[1]))
        return self.out(self.norm(self.blocks(x)))


def asks():
    import intently as it
    return dict(inputs=dict(sequence=torch.randint(0, 22, (2, 9))), mask=it.causal())


def wrong():
    torch.manual_seed(0)
    return ProteinModel(Head).eval()


def right():
    torch.manual_seed(0)
    return ProteinModel(HeadMended).eval()


def proof():
    x = torch.randint(0, 22, (2, 9))
    with torch.no_grad():
        return not torch.allclose(wrong()(x), right()(x), atol=1e-4)


if __name__ == "__main__":
    print(proof())
