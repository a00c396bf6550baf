"""repeat_kv, written for (batch, heads, time, d), is called on keys and values of (batch, time, heads, d), so it repeats tokens and not heads; the kernel takes the longer keys without complaint. Source: github.com/ByteDance-Seed/VeOmni/pull/162"""
import torch
import torch.nn as nn

expect = ["leak-later", "mask-other", "mask-missing"]
words = "each key stands n times in time, and the causal mask, aligned bottom-right to the longer keys, lets early queries see later tokens"


def repeat_kv(x, n):                                    # second axis is repeated
    b, g, t, d = x.shape
    return x[:, :, None].expand(b, g, n, t, d).reshape(b, g * n, t, d)


def kernel(q, k, v, causal=True):                       # (b, t, h, d), any number of key heads that divides h
    t, s, h, g = q.shape[1], k.shape[1], q.shape[2], k.shape[2]
    k, v = k.repeat_interleave(h // g, 2), v.repeat_interleave(h // g, 2)
    z = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    if causal:
        z = z.masked_fill(~torch.ones(t, s, dtype=torch.bool).tril(s - t), float("-inf"))
    return torch.einsum("bhij,bjhd->bihd", z.softmax(-1), v)


class Attention(nn.Module):
    def __init__(self, mended, width=32, heads=4, groups=2, parallel=4):
        super().__init__()
        self.mended, self.heads, self.groups, self.parallel = mended, heads, groups, parallel
        d = width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * d, bias=False)
        self.v = nn.Linear(width, groups * d, bias=False)
        self.o = nn.Linear(width, width, bias=False)

    def forward(self, hidden):
        b, t, c = hidden.shape
        q = self.q(hidden).view(b, t, self.heads, -1)
        k, v = (f(hidden).view(b, t, self.groups, -1) for f in (self.k, self.v))
        if self.parallel > self.groups:
            n = self.parallel // self.groups
            if self.mended:
                k, v = k.repeat_interleave(n, 2), v.repeat_interleave(n, 2)
            else:
                k, v = repeat_kv(k, n), repeat_kv(v, n)
        return self.o(kernel(q, k, v).reshape(b, t, c))


def build(mended):
    torch.manual_seed(0)
    return Attention(mended).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(hidden=torch.randn(2, 6, 32)), mask=it.causal())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = torch.randn(2, 6, 32)
    y = x.clone()
    y[:, 1] += 1
    return not torch.allclose(wrong()(x)[:, 0], wrong()(y)[:, 0], atol=1e-4) and torch.allclose(right()(x)[:, 0], right()(y)[:, 0], atol=1e-6)
