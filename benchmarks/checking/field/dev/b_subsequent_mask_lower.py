"""The generated look-ahead mask has -inf below the diagonal, so tokens see what follows them. Source: github.com/pytorch/pytorch/issues/29546"""
import torch
import torch.nn as nn
import intently as it

expect = ["mask-transposed"]
words = "the look-ahead mask is flipped: each token sees itself and later ones"


def square_mask(n, flipped):
    ones = torch.ones(n, n)
    hidden = torch.tril(ones, -1) if flipped else torch.triu(ones, 1)
    return torch.zeros(n, n).masked_fill(hidden == 1, float("-inf"))


class WordModel(nn.Module):
    def __init__(self, flipped, words=40, wide=32, heads=2):
        super().__init__()
        self.flipped = flipped
        self.embed = nn.Embedding(words, wide)
        self.place = nn.Embedding(16, wide)
        layer = nn.TransformerEncoderLayer(wide, heads, 64, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.decode = nn.Linear(wide, words)

    def forward(self, ids):
        n = ids.shape[1]
        x = self.embed(ids) + self.place(torch.arange(n))
        return self.decode(self.layers(x, mask=square_mask(n, self.flipped)))


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(ids=torch.randint(0, 40, (2, 7))), mask=it.causal())


def make(flag):
    torch.manual_seed(0)
    return WordModel(flag).eval()


def wrong():
    return make(True)


def right():
    return make(False)


def proof():
    a = asks()["inputs"]["ids"]
    b = a.clone()
    b[:, -1] = (b[:, -1] + 1) % 40
    leak = (wrong()(a) - wrong()(b))[:, :-1].abs().max() > 1e-3
    return bool(leak) and bool((right()(a) - right()(b))[:, :-1].abs().max() < 1e-5)
