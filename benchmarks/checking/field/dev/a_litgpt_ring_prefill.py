"""A ring-buffer cache of a sliding-window layer takes a prompt longer than the window: later keys overwrite earlier ones, and the mask, cut from a plain triangle, lets early queries see them. Source: github.com/Lightning-AI/litgpt/pull/2215"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["leak-later", "mask-other", "cache-overwritten", "window-missing"]
words = "slots of the ring hold later keys than the mask believes, so early queries see the future"


class Ring(nn.Module):
    def __init__(self, batch, heads, size, d):
        super().__init__()
        self.register_buffer("k", torch.zeros(batch, heads, size, d))
        self.register_buffer("v", torch.zeros(batch, heads, size, d))

    def forward(self, at, k, v):
        slot = at % self.k.shape[2]
        for n, i in enumerate(slot.tolist()):
            self.k[:, :, i], self.v[:, :, i] = k[:, :, n], v[:, :, n]
        return self.k, self.v


class Attention(nn.Module):
    def __init__(self, width, heads, window, ring):
        super().__init__()
        self.heads, self.window, self.ring = heads, window, ring
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, at, mask):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.ring:
            k, v = Ring(b, self.heads, self.window, c // self.heads)(at, k, v)
            see = mask[at][:, : k.shape[2]]
        else:
            see = mask[at][:, :t] & (at[:, None] - torch.arange(t) < self.window)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=see)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class GPT(nn.Module):
    def __init__(self, ring, words=40, width=32, heads=4, depth=2, window=4, longest=32):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.register_buffer("mask", torch.ones(longest, longest, dtype=torch.bool).tril())
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.attn = nn.ModuleList(Attention(width, heads, window, ring) for _ in range(depth))
        self.lm_head = nn.Linear(width, words)

    def forward(self, idx):
        at = torch.arange(idx.shape[1])
        x = self.wte(idx) + self.wpe(at)
        for norm, attn in zip(self.norms, self.attn):
            x = x + attn(norm(x), at, self.mask)
        return self.lm_head(x)


def build(ring):
    torch.manual_seed(0)
    return GPT(ring).eval().requires_grad_(False)


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(idx=torch.randint(0, 40, (2, 7))), mask=it.window(3, 0))


def wrong():
    return build(True)


def right():
    return build(False)


def proof():
    a = torch.randint(0, 40, (2, 7))
    b = a.clone()
    b[:, 4:] = (b[:, 4:] + 1) % 40
    return not torch.allclose(wrong()(a)[:, :2], wrong()(b)[:, :2], atol=1e-3) and torch.allclose(right()(a)[:, :2], right()(b)[:, :2], atol=1e-6)
