"""An ALiBi score function of flex attention adds slope * (query - key), so far keys gain. Source: github.com/meta-pytorch/attention-gym/pull/86"""
import math

import torch
from torch.nn.attention.flex_attention import flex_attention
import intently as it

expect = ["bias-sign"]
words = "the bias grows with the distance instead of shrinking"


def make(slip):
    def attend(q, k, v):
        heads, exp2, where, minus_infinity = q.shape[1], torch.exp2, torch.where, -math.inf

        def linear_bias(score, b, h, i, j):
            slope = exp2(-(h + 1) * 8.0 / heads)
            distance = (i - j) if slip else (j - i)
            return where(j <= i, score + slope * distance, minus_infinity)

        return flex_attention(q, k, v, score_mod=linear_bias)
    return attend


def asks():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 8, 16).unbind(0)
    return dict(inputs=dict(q=q, k=k, v=v), mask=it.causal(), like=right())


def wrong(): return make(True)
def right(): return make(False)


def proof():
    a = asks()["inputs"]
    v = torch.arange(8.).view(1, 1, 8, 1).expand(2, 4, 8, 16)
    zero = torch.zeros_like(a["q"])
    w, r = (f(zero, zero, v)[0, 0, -1, 0].item() for f in (wrong(), right()))
    return w < 3.5 < r and not torch.allclose(wrong()(**a), right()(**a), atol=1e-3)
