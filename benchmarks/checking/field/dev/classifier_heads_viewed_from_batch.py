"""A text classifier views (b, t, c) as (b h, t, d) and back, without moving the heads. Source: github.com/649453932/Chinese-Text-Classification-Pytorch/issues/53"""
import torch
from torch import nn

expect = ["split-by-reshape", "merged-by-reshape"]
words = "view(b * h, -1, d): each head reads a run of positions"


class EncoderHeads(nn.Module):
    def __init__(self, width, heads, slip):
        super().__init__()
        self.heads, self.size, self.slip = heads, width // heads, slip
        self.fc_q, self.fc_k, self.fc_v, self.fc = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)

    def spread(self, x):
        b, t, c = x.shape
        if self.slip:
            return x.view(b * self.heads, -1, self.size)
        return x.view(b, t, self.heads, self.size).transpose(1, 2).reshape(b * self.heads, t, self.size)

    def gather(self, y, b):
        if self.slip:
            return y.view(b, -1, self.heads * self.size)
        return y.view(b, self.heads, -1, self.size).transpose(1, 2).reshape(b, -1, self.heads * self.size)

    def forward(self, x):
        q, k, v = self.spread(self.fc_q(x)), self.spread(self.fc_k(x)), self.spread(self.fc_v(x))
        att = torch.softmax(torch.bmm(q, k.transpose(1, 2)) * self.size ** -0.5, dim=-1)
        y = self.fc(self.gather(torch.bmm(att, v), x.size(0)))
        return self.norm(y + x)


def make(slip):
    torch.manual_seed(14)
    return EncoderHeads(32, 4, slip).eval()


def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 8, 32)))


def wrong(): return make(True)
def right(): return make(False)


def proof():
    x = asks()["inputs"]["x"]
    y = x.clone(); y[:, 7] += 1
    return torch.allclose(wrong()(x)[:, 0], wrong()(y)[:, 0]) and not torch.allclose(right()(x)[:, 0], right()(y)[:, 0], atol=1e-3)
