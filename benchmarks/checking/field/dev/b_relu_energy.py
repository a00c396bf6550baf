"""Additive attention of a seq2seq model puts relu between the sum and v, where the formula has tanh. Source: github.com/keon/seq2seq/issues/28"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["scores-other", "differs-from-reference"]
words = "energy is v . relu(W [h; s]) for v . tanh(W [h; s])"


class Energy(nn.Module):
    def __init__(self, fixed, hidden=20):
        super().__init__()
        self.fixed = fixed
        self.attn = nn.Linear(2 * hidden, hidden)
        self.v = nn.Parameter(torch.randn(hidden) / hidden ** 0.5)

    def forward(self, hidden, outputs):
        """hidden (b, n), outputs (b, s, n) of the encoder -> context (b, n)."""
        states = hidden.unsqueeze(1).expand(-1, outputs.shape[1], -1)
        e = self.attn(torch.cat((states, outputs), 2))
        e = torch.tanh(e) if self.fixed else F.relu(e)
        a = F.softmax(e @ self.v, dim=1)
        return torch.bmm(a.unsqueeze(1), outputs).squeeze(1)


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(hidden=torch.randn(2, 20), outputs=torch.randn(2, 7, 20)), like=right())


def _make(fixed):
    torch.manual_seed(0)
    return Energy(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    return not torch.allclose(wrong()(**a), right()(**a), atol=1e-3)
