"""The fallback of an attention layer for a single cached token calls scaled_dot_product_attention over all cached keys and forgets the sliding window. Source: github.com/karpathy/nanochat/pull/456"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["window-off-in-cache", "window-missing", "cached-step-differs"]
words = "a single step from the cache sees keys beyond the window"


def windowed(q, k, v, left, mended):                    # (b, h, t, d); left: keys before one's own, -1 for all
    t, s = q.shape[2], k.shape[2]
    if t == s and (left < 0 or left >= t):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if t == 1:
        if mended and 0 <= left < s:
            k, v = k[:, :, -(left + 1):], v[:, :, -(left + 1):]
        return F.scaled_dot_product_attention(q, k, v)
    i = s - t + torch.arange(t)[:, None]
    j = torch.arange(s)
    see = j <= i
    if left >= 0:
        see = see & (i - j <= left)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=see)


class Attention(nn.Module):
    def __init__(self, width, heads, left, mended):
        super().__init__()
        self.heads, self.left, self.mended = heads, left, mended
        self.c_q, self.c_k, self.c_v, self.c_proj = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x, cache=None):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.c_q, self.c_k, self.c_v))
        q, k = F.rms_norm(q, (q.size(-1),)), F.rms_norm(k, (k.size(-1),))
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        y = windowed(q, k, v, self.left, self.mended)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c)), (k, v)


class Chat(nn.Module):
    def __init__(self, mended, words=40, width=32, heads=4, lefts=(2, 2)):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(32, width)
        self.h = nn.ModuleList(Attention(width, heads, n, mended) for n in lefts)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, idx, past=None):
        start = past[0][0].shape[2] if past else 0
        x = self.wte(idx) + self.wpe(start + torch.arange(idx.shape[1]))
        new = []
        for n, block in enumerate(self.h):
            y, kv = block(F.rms_norm(x, (x.size(-1),)), past[n] if past else None)
            x = x + y
            new.append(kv)
        return self.head(x), new


class Generate(nn.Module):
    """All tokens one by one through the cache, logits of every step."""

    def __init__(self, mended):
        super().__init__()
        self.model = Chat(mended)

    def forward(self, idx):
        out, past = [], None
        for i in range(idx.shape[1]):
            y, past = self.model(idx[:, i : i + 1], past)
            out.append(y)
        return torch.cat(out, 1)


def build(mended):
    torch.manual_seed(0)
    return Generate(mended).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(idx=torch.randint(0, 40, (2, 8))), mask=it.window(2, 0))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    idx = torch.randint(0, 40, (2, 8))
    a, b = wrong(), right()
    return not torch.allclose(a(idx), a.model(idx)[0], atol=1e-3) and torch.allclose(b(idx), b.model(idx)[0], atol=1e-4)
