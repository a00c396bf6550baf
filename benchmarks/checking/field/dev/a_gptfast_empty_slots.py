"""A static cache hands its whole buffer to attention, and the decode step calls the kernel without a mask, so slots that are still zero get weight. Source: github.com/meta-pytorch/gpt-fast/issues/233"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["cached-step-differs", "padding-attended", "mask-in-cache", "mask-missing"]
words = "zero keys of unfilled cache slots take part in the softmax of cached steps"


class KVCache(nn.Module):
    def __init__(self, batch, longest, heads, d):
        super().__init__()
        self.register_buffer("k", torch.zeros(batch, heads, longest, d))
        self.register_buffer("v", torch.zeros(batch, heads, longest, d))

    def update(self, at, k, v):
        self.k[:, :, at], self.v[:, :, at] = k, v
        return self.k, self.v


class Attention(nn.Module):
    def __init__(self, width, heads, longest, masked):
        super().__init__()
        self.heads, self.masked, self.longest = heads, masked, longest
        self.wqkv, self.wo = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x, at, cache):
        b, t, c = x.shape
        q, k, v = self.wqkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        k, v = cache.update(at, k, v)
        see = torch.arange(self.longest) <= at[:, None]
        if t == 1 and not self.masked:
            see = None
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=see)
        return self.wo(y.transpose(1, 2).reshape(b, t, c))


class Fast(nn.Module):
    def __init__(self, masked, words=40, width=32, heads=4, depth=2, longest=16):
        super().__init__()
        self.heads, self.width, self.longest = heads, width, longest
        self.tok, self.pos = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(Attention(width, heads, longest, masked) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, words, bias=False)

    def step(self, idx, at, caches):
        x = self.tok(idx) + self.pos(at)
        for layer, cache in zip(self.layers, caches):
            x = x + layer(self.norm(x), at, cache)
        return self.out(x)

    def forward(self, idx, prompt: int = 4):
        caches = [KVCache(idx.shape[0], self.longest, self.heads, self.width // self.heads) for _ in self.layers]
        out = [self.step(idx[:, :prompt], torch.arange(prompt), caches)]
        for i in range(prompt, idx.shape[1]):
            out.append(self.step(idx[:, i : i + 1], torch.tensor([i]), caches))
        return torch.cat(out, 1)


def build(masked):
    torch.manual_seed(0)
    return Fast(masked).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(idx=torch.randint(0, 40, (2, 8))), mask=it.causal())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    idx = asks()["inputs"]["idx"]
    with torch.no_grad():
        return not torch.allclose(wrong()(idx, 4), wrong()(idx, 8), atol=1e-3) and torch.allclose(right()(idx, 4), right()(idx, 8), atol=1e-5)
