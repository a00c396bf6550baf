"""Additive attention whose softmax moved inside the energy, over features; the weights over the source are only rectified. Source: github.com/keon/seq2seq/pull/6"""
import torch
from torch import nn
import torch.nn.functional as F

expect = ["not-normalised"]
words = "relu(score) is used as weight; the softmax is taken over the hidden units of the energy"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(hidden=torch.randn(3, 32), encoded=torch.randn(7, 3, 32)))

class Align(nn.Module):
    def __init__(self, n, softmax_last):
        super().__init__()
        self.joint = nn.Linear(2 * n, n)
        self.v = nn.Parameter(torch.rand(n))
        self.softmax_last = softmax_last

    def forward(self, hidden, encoded):
        steps = encoded.size(0)
        query = hidden.unsqueeze(0).expand(steps, -1, -1).transpose(0, 1)
        keys = encoded.transpose(0, 1)
        mixed = self.joint(torch.cat((query, keys), 2))
        if self.softmax_last:
            a = F.softmax(torch.tanh(mixed) @ self.v, dim=1)
        else:
            a = F.relu(F.softmax(mixed, dim=2) @ self.v)
        return torch.bmm(a.unsqueeze(1), keys).squeeze(1)

def wrong():
    torch.manual_seed(1)
    return Align(32, False).eval()

def right():
    torch.manual_seed(1)
    return Align(32, True).eval()

def proof():
    one = dict(hidden=torch.randn(3, 32), encoded=torch.randn(7, 3, 32))
    a, b = (f(**one) for f in (wrong(), right()))
    w = wrong()
    longer = w(one["hidden"], torch.cat((one["encoded"], one["encoded"])))
    return bool((a - b).abs().max() > .05 and torch.allclose(longer, 2 * a, atol=1e-4))
