"""The T5 port of an interpretability library sorts distances of its decoder into the encoder's bidirectional buckets. Source: github.com/TransformerLensOrg/TransformerLens/pull/1681"""
import math
import torch
import torch.nn as nn

expect = ["bias-other", "differs-from-reference"]
words = "half of the decoder's buckets are kept for later keys, so far earlier keys get the bias of other buckets"


def bucket(far, both, n=8, most=20):
    out = torch.zeros_like(far)
    if both:
        n //= 2
        out = (far > 0).long() * n
        far = far.abs()
    else:
        far = (-far).clamp(min=0)
    exact = n // 2
    big = exact + (torch.log(far.float().clamp(min=1) / exact) / math.log(most / exact) * (n - exact)).long()
    return out + torch.where(far < exact, far, big.clamp(max=n - 1))


class T5Attention(nn.Module):
    def __init__(self, width, heads, biased, both):
        super().__init__()
        self.heads, self.both = heads, both
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.rel_pos_bias = nn.Embedding(8, heads) if biased else None

    def forward(self, x, m, mask=None):
        b, t, c = x.shape
        s = m.shape[1]
        q, k, v = (f(a).view(b, -1, self.heads, c // self.heads).transpose(1, 2) for f, a in ((self.q, x), (self.k, m), (self.v, m)))
        z = q @ k.transpose(2, 3)
        if self.rel_pos_bias is not None:
            far = torch.arange(s)[None] - torch.arange(t)[:, None]
            z = z + self.rel_pos_bias(bucket(far, self.both)).permute(2, 0, 1)
        if mask is not None:
            z = z.masked_fill(~mask, float("-inf"))
        return self.o((z.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class T5(nn.Module):
    def __init__(self, mended, words=40, width=32, heads=4):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(4))
        self.enc = T5Attention(width, heads, True, True)
        self.dec = T5Attention(width, heads, True, not mended)
        self.cross = T5Attention(width, heads, False, False)

    def forward(self, input_ids, decoder_input_ids):
        x = self.embed(input_ids)
        n = self.norms[0](x)
        x = self.norms[1](x + self.enc(n, n))
        y = self.embed(decoder_input_ids)
        n = self.norms[2](y)
        t = n.shape[1]
        y = y + self.dec(n, n, torch.ones(t, t, dtype=torch.bool).tril())
        y = y + self.cross(self.norms[3](y), x)
        return y @ self.embed.weight.T


def build(mended):
    torch.manual_seed(0)
    return T5(mended).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(input_ids=torch.randint(0, 40, (2, 6)), decoder_input_ids=torch.randint(0, 40, (2, 9))), scale=1.0, like=right())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = asks()["inputs"]
    x, y = wrong()(**a), right()(**a)
    return torch.allclose(x[:, :2], y[:, :2], atol=1e-5) and not torch.allclose(x[:, 6:], y[:, 6:], atol=1e-3)
