"""The word language model of the examples gets its subsequent mask flipped: zeros above the diagonal and -inf below, so each word sees only itself and later words. Source: github.com/pytorch/examples/issues/649"""
import math
import torch
import torch.nn as nn

expect = ["mask-transposed"]
words = "the mask hides the past and shows the future"


class TransformerLM(nn.Module):
    def __init__(self, flipped, ntoken=50, ninp=32, nhead=2, nhid=64, nlayers=2):
        super().__init__()
        self.flipped, self.ninp, self.src_mask = flipped, ninp, None
        self.encoder = nn.Embedding(ntoken, ninp)
        self.place = nn.Embedding(64, ninp)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(ninp, nhead, nhid, 0.2), nlayers, enable_nested_tensor=False)
        self.decoder = nn.Linear(ninp, ntoken)

    def subsequent(self, n):
        hidden = torch.ones(n, n).tril(-1) if self.flipped else torch.ones(n, n).triu(1)
        return torch.zeros(n, n).masked_fill(hidden == 1, float("-inf"))

    def forward(self, src):                               # (time, batch)
        if self.src_mask is None or self.src_mask.size(0) != len(src):
            self.src_mask = self.subsequent(len(src))
        x = self.encoder(src) * math.sqrt(self.ninp) + self.place(torch.arange(len(src)))[:, None]
        return torch.log_softmax(self.decoder(self.body(x, self.src_mask)), -1)


def build(flipped):
    torch.manual_seed(0)
    return TransformerLM(flipped).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(src=torch.randint(0, 50, (7, 2))), mask=it.causal(), layout="t b")


def wrong():
    return build(True)


def right():
    return build(False)


def proof():
    a = torch.randint(0, 50, (7, 2))
    b = a.clone()
    b[0] = (b[0] + 1) % 50
    return torch.allclose(wrong()(a)[1:], wrong()(b)[1:], atol=1e-5) and not torch.allclose(right()(a)[1:], right()(b)[1:], atol=1e-4)
