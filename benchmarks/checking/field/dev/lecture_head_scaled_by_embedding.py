"""A lecture's causal head scales by the width of its input, not by that of the head. Source: github.com/karpathy/ng-video-lecture/pull/6"""
import torch
from torch import nn
import intently as it

expect = ["scale-model-width"]
words = "C ** -0.5 with C of the embedding"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 7, 48)), mask=it.causal())

class OneHead(nn.Module):
    def __init__(self, width, size, longest, by_input):
        super().__init__()
        self.k, self.q, self.v = (nn.Linear(width, size, bias=False) for _ in range(3))
        self.register_buffer("past", torch.ones(longest, longest).tril().bool())
        self.by_input = by_input
        for one in (self.k, self.q):
            nn.init.normal_(one.weight, std=.3)

    def forward(self, x):
        t, c = x.shape[1:]
        k, q = self.k(x), self.q(x)
        z = (q @ k.mT) * (c if self.by_input else k.shape[-1]) ** -0.5
        return z.masked_fill(~self.past[:t, :t], float("-inf")).softmax(-1) @ self.v(x)

class Heads(nn.Module):
    def __init__(self, width, count, by_input):
        super().__init__()
        self.heads = nn.ModuleList(OneHead(width, width // count, 16, by_input) for _ in range(count))
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], -1))

def wrong():
    torch.manual_seed(1)
    return Heads(48, 3, True).eval()

def right():
    torch.manual_seed(1)
    return Heads(48, 3, False).eval()

def proof():
    i = asks()["inputs"]
    return bool((wrong()(**i) - right()(**i)).abs().max() > .1)
