"""A decoder block takes an encoder output and attends to its own states a second time instead. Source: github.com/keitakurita/Practical_NLP_in_PyTorch/issues/1"""
import torch
from torch import nn

expect = ["cross-ignores-context"]
words = "keys and values of the second attention are the decoder's own"


class Head(nn.Module):
    def __init__(self, width, size):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, size) for _ in range(3))

    def forward(self, queries, keys, values):
        q, k, v = self.q(queries), self.k(keys), self.v(values)
        return (q.bmm(k.transpose(1, 2)) / q.size(-1) ** 0.5).softmax(2).bmm(v)


class Heads(nn.Module):
    def __init__(self, width, count):
        super().__init__()
        self.each = nn.ModuleList(Head(width, width // count) for _ in range(count))
        self.join = nn.Linear(width, width)

    def forward(self, queries, keys, values):
        return self.join(torch.cat([h(queries, keys, values) for h in self.each], -1))


class Decoder(nn.Module):
    def __init__(self, width, count, slip):
        super().__init__()
        self.slip = slip
        self.first, self.second = Heads(width, count), Heads(width, count)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(self, x, enc_out):
        att = self.first(x, x, x)
        x = x + self.norms[0](att)
        source = x if self.slip else enc_out
        att = self.second(queries=att, keys=source, values=source)
        x = x + self.norms[1](att)
        return x + self.norms[2](self.feed(x))


def make(slip):
    torch.manual_seed(11)
    return Decoder(32, 4, slip).eval()


def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 5, 32), enc_out=torch.randn(2, 8, 32)))


def wrong(): return make(True)
def right(): return make(False)


def proof():
    a = asks()["inputs"]
    other = dict(a, enc_out=a["enc_out"] + 1)
    return torch.equal(wrong()(**a), wrong()(**other)) and not torch.allclose(right()(**a), right()(**other), atol=1e-3)
