"""The output of attention overwrites x and is then added to itself, so the residual stream is lost. Source: github.com/kyegomez/BitNet/issues/32"""
import torch
import torch.nn as nn
import torch.nn.functional as F
import intently as it

expect = []
words = "x = attn(x); x = x + x: twice the attention instead of input plus attention"


class TernaryLinear(nn.Linear):
    def forward(self, x):
        s = self.weight.abs().mean()
        w = self.weight + ((self.weight / (s + 1e-6)).round().clamp(-1, 1) * s - self.weight).detach()
        return F.linear(x, w, self.bias)


class SelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (TernaryLinear(width, width) for _ in range(4))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, t, c))


class TernaryTransformer(nn.Module):
    def __init__(self, vocab=29, width=32, heads=4, depth=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.attentions = nn.ModuleList(SelfAttention(width, heads) for _ in range(depth))
        self.feeds = nn.ModuleList(nn.Sequential(TernaryLinear(width, 2 * width), nn.SiLU(), TernaryLinear(2 * width, width)) for _ in range(depth))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocab))

    def step(self, attend, x):
        x = attend(x)
        x = x + x
        return x

    def forward(self, ids):
        x = self.embed(ids)
        for attend, feed in zip(self.attentions, self.feeds):
            x = self.step(attend, x)
            x = feed(x) + x
        return self.out(x)


class TernaryTransformerMended(TernaryTransformer):
    def step(self, attend, x):
        return x + attend(x)


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(ids=torch.randint(0, 29, (2, 7))), mask=it.causal())


def wrong():
    torch.manual_seed(0)
    return TernaryTransformer().eval()


def right():
    torch.manual_seed(0)
    return TernaryTransformerMended().eval()


def proof():
    i = asks()["inputs"]
    return not torch.allclose(wrong()(**i), right()(**i), atol=1e-5)
