"""A transformer numbers positions by x.size(0), the batch, so all tokens of a text get the position of their row. Source: github.com/cmu-l3/anlp-fall2025-code/issues/1"""
import torch
import torch.nn as nn
import torch.nn.functional as F
import intently as it

expect = []
words = "positions are those of the rows of the batch: all tokens of a text have one position vector"


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        z = q @ k.transpose(-2, -1) / (c // self.heads) ** 0.5
        z = z.masked_fill(torch.triu(torch.ones(t, t, dtype=torch.bool), 1), float("-inf"))
        return self.o((z.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention, self.a, self.b = Attention(width, heads), nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x):
        x = x + self.attention(self.a(x))
        return x + self.down(F.gelu(self.up(self.b(x))))


class LanguageModel(nn.Module):
    def __init__(self, vocab=26, width=32, heads=4):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(32, width)
        self.blocks = nn.Sequential(Block(width, heads), Block(width, heads))
        self.out = nn.Linear(width, vocab)

    def positions(self, x):
        return torch.arange(x.size(0)).unsqueeze(1)

    def forward(self, x):
        return self.out(self.blocks(self.tokens(x) + self.places(self.positions(x))))


class LanguageModelMended(LanguageModel):
    def positions(self, x):
        return torch.arange(x.size(1)).unsqueeze(0)


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randint(0, 26, (2, 7))), mask=it.causal())


def wrong():
    torch.manual_seed(0)
    return LanguageModel().eval()


def right():
    torch.manual_seed(0)
    return LanguageModelMended().eval()


def proof():
    x = torch.tensor([[3, 4, 5], [3, 4, 5]])
    w, r = wrong()(x), right()(x)
    return not torch.allclose(w[0], w[1], atol=1e-4) and torch.allclose(r[0], r[1], atol=1e-6)
