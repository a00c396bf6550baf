"""A model of neural recordings gives its dropout to scaled_dot_product_attention whatever mode it is in: validation is random. Source: github.com/colehurwitz/IBL_MtM_model/pull/13"""
import torch
import torch.nn.functional as F
from torch import nn

expect = ["dropout-in-eval"]
words = "the functional attention drops weights in eval()"


def asks():
    return dict(inputs=dict(x=torch.randn(2, 8, 32)))


class SpikeAttention(nn.Module):
    def __init__(self, width, heads, dropout, mind_the_mode):
        super().__init__()
        self.heads, self.p, self.mind_the_mode = heads, dropout, mind_the_mode
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out_proj = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, c // self.heads).transpose(1, 2) for f in (self.query, self.key, self.value))
        p = self.p if self.training or not self.mind_the_mode else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return self.out_proj(self.dropout(y.transpose(1, 2).reshape(b, t, c)))


def make(mind_the_mode):
    torch.manual_seed(2)
    return SpikeAttention(32, 4, 0.4, mind_the_mode).eval()


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    x = torch.randn(2, 8, 32)
    a, b = wrong(), right()
    return not torch.equal(a(x), a(x)) and torch.equal(b(x), b(x))
