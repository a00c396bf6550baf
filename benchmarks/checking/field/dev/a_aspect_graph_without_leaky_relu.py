"""A re-implementation of GAT's attention for aspects declares a LeakyReLU and never calls it, so the aspect cancels in the softmax. Source: github.com/shenwzh3/RGAT-ABSA/issues/3"""
import torch
from torch import nn
import intently as it

expect = ["query-without-influence"]
words = "scores are linear in [word; aspect], the part of the aspect is the same for all words"


def asks():
    torch.manual_seed(3)
    n = torch.tensor([7, 5])
    return dict(inputs=dict(words_=torch.randn(2, 7, 24), aspect=torch.randn(2, 24), real=torch.arange(7) < n[:, None]), mask=it.padding(n))


class AspectAttention(nn.Module):
    def __init__(self, width=24, inner=24):
        super().__init__()
        self.linear = nn.Linear(width, inner)
        self.fc = nn.Linear(2 * inner, 1)
        self.leaky = nn.LeakyReLU(0.2)

    def bend(self, score):
        return score

    def forward(self, words_, aspect, real):
        h = self.linear(words_)
        a = self.linear(aspect)[:, None].expand_as(h)
        score = self.bend(self.fc(torch.cat([h, a], -1)))                   # (b, n, 1)
        score = score.masked_fill(~real[..., None], float("-inf"))
        share = torch.softmax(score, 1)
        return torch.bmm(h.transpose(1, 2), share).squeeze(2)


class AspectAttentionMended(AspectAttention):
    def bend(self, score):
        return self.leaky(score)


def wrong():
    torch.manual_seed(0)
    return AspectAttention().eval()


def right():
    torch.manual_seed(0)
    return AspectAttentionMended().eval()


def proof():
    x = asks()["inputs"]
    y = dict(x, aspect=x["aspect"].flip(0) * 2)
    moved = lambda f: (f(**x) - f(**y)).abs().max()
    return bool(moved(wrong()) < 1e-5 and moved(right()) > 1e-3)
