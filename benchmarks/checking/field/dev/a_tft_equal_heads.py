"""Interpretable multi-head attention appends the same query layer and the same key layer for every head, so all heads are equal. Source: github.com/stevinc/Transformer_Timeseries/issues/2"""
import torch
import torch.nn as nn
import intently as it

expect = []
words = "all heads share one query and one key projection: n heads compute one attention n times (only values are meant to be shared)"


class SharedValueHeads(nn.Module):
    def __init__(self, heads, width):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.value = nn.Linear(width, self.size, bias=False)
        self.queries, self.keys = self.layers(width)
        self.out = nn.Linear(self.size, width, bias=False)
        self.drop = nn.Dropout(0.1)

    def layers(self, width):
        q = nn.Linear(width, self.size, bias=False)
        k = nn.Linear(width, self.size, bias=False)
        return nn.ModuleList([q] * self.heads), nn.ModuleList([k] * self.heads)

    def forward(self, q, k, v, mask=None):
        ys, ws = [], []
        values = self.value(v)
        for to_q, to_k in zip(self.queries, self.keys):
            z = torch.bmm(to_q(q), to_k(k).transpose(1, 2)) / self.size ** 0.5
            if mask is not None:
                z = z.masked_fill(mask, -1e9)
            w = z.softmax(2)
            ws.append(w)
            ys.append(self.drop(w @ values))
        return self.drop(self.out(torch.stack(ys).mean(0))), torch.stack(ws)


class SharedValueHeadsMended(SharedValueHeads):
    def layers(self, width):
        make = lambda: nn.Linear(width, self.size, bias=False)
        return nn.ModuleList(make() for _ in range(self.heads)), nn.ModuleList(make() for _ in range(self.heads))


def asks():
    torch.manual_seed(1)
    x = torch.randn(2, 7, 32)
    future = torch.ones(7, 7).triu(1).bool()
    return dict(inputs=dict(q=x, k=x, v=x, mask=future), mask=it.causal())


def wrong():
    torch.manual_seed(0)
    return SharedValueHeads(4, 32).eval()


def right():
    torch.manual_seed(0)
    return SharedValueHeadsMended(4, 32).eval()


def proof():
    i = asks()["inputs"]
    w, r = wrong()(**i)[1], right()(**i)[1]
    return torch.equal(w[0], w[1]) and not torch.allclose(r[0], r[1], atol=1e-4)
