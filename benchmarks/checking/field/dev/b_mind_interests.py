"""Capsule routing of a recommender: weights of history items are normalised over interests, so padding keeps weight. Source: github.com/PaddlePaddle/PaddleRec/pull/904"""
import torch
from torch import nn

expect = ["softmax-over-queries", "padding-attended"]
words = "softmax over the interests (dim 1 of (batch, interests, items)) where it belongs over the items (dim 2)"


class Interests(nn.Module):
    """Learned interests attend to the items of a history."""

    def __init__(self, fixed, width=16, k=3):
        super().__init__()
        self.axis = 2 if fixed else 1
        self.bilinear = nn.Linear(width, width, bias=False)
        self.logits = nn.Parameter(torch.randn(k, width))

    def forward(self, history, lengths):
        low = self.bilinear(history)
        routing = torch.einsum("kc,bsc->bks", self.logits, low)
        hidden = torch.arange(history.shape[1])[None] >= lengths[:, None]
        routing = routing.masked_fill(hidden[:, None], -2.0 ** 32)
        w = routing.softmax(self.axis)
        return w @ low


def asks():
    import intently as it
    torch.manual_seed(1)
    lengths = torch.tensor([7, 4])
    return dict(inputs=dict(history=torch.randn(2, 7, 16), lengths=lengths), mask=it.padding(lengths), scale=1.0)


def _make(fixed):
    torch.manual_seed(0)
    return Interests(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    other = dict(a, history=a["history"].clone())
    other["history"][1, 4:] += 1
    w, r = wrong(), right()
    return not torch.allclose(w(**a), w(**other)) and torch.allclose(r(**a), r(**other))
