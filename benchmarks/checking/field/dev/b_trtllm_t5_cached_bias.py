"""As soon as there is a cache, self-attention falls back to the base class and the relative bias is dropped. Source: github.com/NVIDIA/TensorRT-LLM/pull/13870"""
import math
import torch
from torch import nn
import intently as it

expect = ["bias-missing", "bias-offset-lost", "bias-in-one-path", "cached-step-differs"]
words = "cached steps of T5 have no relative position bias"


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def heads_of(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, hidden, past=None, bias=None):
        q, k, v = self.heads_of(self.q(hidden)), self.heads_of(self.k(hidden)), self.heads_of(self.v(hidden))
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        t, s = q.shape[2], k.shape[2]
        z = q @ k.mT
        if bias is not None:
            z = z + bias
        later = torch.ones(t, s, dtype=torch.bool).triu(s - t + 1)
        w = z.masked_fill(later, float("-inf")).softmax(-1)
        return self.o((w @ v).transpose(1, 2).flatten(2)), (k, v)


class T5SelfAttention(Attention):
    def __init__(self, dim=32, heads=4, buckets=8, bias_with_cache=True):
        super().__init__(dim, heads)
        self.buckets, self.bias_with_cache = buckets, bias_with_cache
        self.relative_attention_bias = nn.Embedding(buckets, heads)

    def position_bias(self, t, s, far=16):
        back = (torch.arange(s - t, s)[:, None] - torch.arange(s)[None]).clamp(min=0)
        exact = self.buckets // 2
        log = exact + (torch.log(back.clamp(min=1) / exact) / math.log(far / exact) * (self.buckets - exact)).long()
        bucket = torch.where(back < exact, back, log.clamp(max=self.buckets - 1))
        return self.relative_attention_bias(bucket).permute(2, 0, 1)[None]

    def forward(self, hidden, past=None):
        if past is not None and not self.bias_with_cache:
            return super().forward(hidden, past)
        t = hidden.shape[1]
        s = t + (0 if past is None else past[0].shape[2])
        return super().forward(hidden, past, self.position_bias(t, s))


class Reference(T5SelfAttention):
    """The published model: bias of every pair, one row taken for a step."""

    def forward(self, hidden, past=None):
        n = hidden.shape[1] + (0 if past is None else past[0].shape[2])
        full = self.position_bias(n, n)
        return Attention.forward(self, hidden, past, full[:, :, -hidden.shape[1]:])


def build(kind, **options):
    torch.manual_seed(1)
    return kind(**options).eval()


def asks():
    torch.manual_seed(0)
    past = (torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8))
    return dict(inputs=dict(hidden=torch.randn(2, 1, 32), past=past), mask=it.causal(), scale=1.0,
                like=build(Reference))


def wrong():
    return build(T5SelfAttention, bias_with_cache=False)


def right():
    return build(T5SelfAttention, bias_with_cache=True)


def proof():
    a = asks()
    d = lambda f: (f(**a["inputs"])[0] - a["like"](**a["inputs"])[0]).abs().max().item()
    x = torch.randn(2, 7, 32)
    f = right()
    first, past = f(x[:, :4])
    joined = torch.cat((first, f(x[:, 4:], past)[0]), 1)
    return d(wrong()) > 1e-2 and d(right()) < 1e-6 and (joined - f(x)[0]).abs().max().item() < 1e-5
