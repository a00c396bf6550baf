"""A decoding step writes its key into the slot of its value. Source: github.com/snu-comparch/InfiniGen/issues/5"""
import torch
from torch import nn
import intently as it

expect = ["values-are-keys", "cached-step-differs"]
words = "after the first pass the value cache receives keys"


class CachedSelfAttention(nn.Module):
    def __init__(self, width=32, heads=4, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def rows(self, x):
        b, t, c = x.shape
        return x.view(b, t, self.heads, c // self.heads).permute(0, 2, 1, 3)

    def forward(self, hidden, past=None):
        b, t, c = hidden.shape
        q = self.rows(self.q_proj(hidden) * (c // self.heads) ** -0.5)
        k, v = self.rows(self.k_proj(hidden)), self.rows(self.v_proj(hidden))
        if past is None:
            store, start = torch.stack((k, v)), 0
        else:
            start = past.shape[3]
            store = past.new_empty(2, b, self.heads, start + t, c // self.heads)
            store[:, :, :, :start] = past
            store[0, :, :, start:] = k
            store[1, :, :, start:] = k if self.slip else v
        scores = q @ store[0].transpose(2, 3)
        seen = torch.arange(start + t)[None, :] <= torch.arange(start, start + t)[:, None]
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        y = (weights @ store[1]).permute(0, 2, 1, 3).reshape(b, t, c)
        return self.out_proj(y), store


def make(slip):
    torch.manual_seed(5)
    return CachedSelfAttention(slip=slip).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(hidden=torch.randn(2, 7, 32)), mask=it.causal())


def wrong(): return make(True)
def right(): return make(False)


def proof():
    x = asks()["inputs"]["hidden"]
    outs = []
    for m in (wrong(), right()):
        whole = m(x)[0]
        y, past = m(x[:, :4])
        last = []
        for i in range(4, 7):
            y, past = m(x[:, i:i + 1], past)
            last.append(y)
        outs.append((torch.cat(last, 1) - whole[:, 4:]).abs().max().item())
    return outs[0] > 1e-2 and outs[1] < 1e-5
