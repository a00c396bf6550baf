"""Learned tokens (b, s, c) go to an attention that reads (s, b, c), and are brought there by a view. Source: github.com/rish-16/tokenlearner-pytorch/issues/1"""
import torch
from torch import nn

expect = ["batch-mixed", "batch-and-sequence-exchanged"]
words = "view(s, b, c) of (b, s, c) in place of a transpose"


class TokenMixer(nn.Module):
    def __init__(self, width, heads, slip):
        super().__init__()
        self.slip = slip
        self.mhsa = nn.MultiheadAttention(width, heads)

    def forward(self, tokens):
        b, s, c = tokens.shape
        y = tokens.view(s, b, c) if self.slip else tokens.transpose(0, 1)
        y, _ = self.mhsa(y, y, y)
        return y.contiguous().view(b, s, c) if self.slip else y.transpose(0, 1)


def make(slip):
    torch.manual_seed(15)
    return TokenMixer(24, 3, slip).eval()


def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(tokens=torch.randn(2, 8, 24)))


def wrong(): return make(True)
def right(): return make(False)


def proof():
    x = asks()["inputs"]["tokens"]
    y = x.clone(); y[1] += torch.randn(8, 24)
    return not torch.allclose(wrong()(x)[0], wrong()(y)[0], atol=1e-3) and torch.allclose(right()(x)[0], right()(y)[0], atol=1e-6)
