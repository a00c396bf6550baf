"""Layers that share keys and values of an earlier layer rotate their queries at the offset of that layer's cache, which has already advanced by the tokens of this step. Source: github.com/ml-explore/mlx-lm/pull/1702"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["rotation-offset-lost", "rotation-off-by-one", "cached-step-differs"]
words = "queries of sharing layers stand as many positions too far as the step has tokens, so a prompt in one piece and in steps disagree"


class Cache:
    def __init__(self):
        self.k = self.v = None
        self.offset = 0

    def update_and_fetch(self, k, v):
        self.k = k if self.k is None else torch.cat((self.k, k), 2)
        self.v = v if self.v is None else torch.cat((self.v, v), 2)
        self.offset += k.shape[2]
        return self.k, self.v


def rope(x, offset):                                       # (b, h, t, d)
    d, t = x.shape[-1], x.shape[2]
    a = (offset + torch.arange(t).float())[:, None] * 10000 ** (-torch.arange(0, d, 2).float() / d)
    c, s = a.cos(), a.sin()
    p, q = x.chunk(2, -1)
    return torch.cat((p * c - q * s, q * c + p * s), -1)


class Attention(nn.Module):
    def __init__(self, width, heads, shared, mended):
        super().__init__()
        self.heads, self.shared, self.mended = heads, shared, mended
        self.q_proj, self.o_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        if not shared:
            self.k_proj, self.v_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x, cache):
        b, t, c = x.shape
        q = self.q_proj(x).view(b, t, self.heads, -1).transpose(1, 2)
        if self.shared:
            k, v = cache.k, cache.v
            offset = cache.offset - t if self.mended else cache.offset
        else:
            offset = cache.offset
            k = rope(self.k_proj(x).view(b, t, self.heads, -1).transpose(1, 2), offset)
            v = self.v_proj(x).view(b, t, self.heads, -1).transpose(1, 2)
            k, v = cache.update_and_fetch(k, v)
        s = k.shape[2]
        y = F.scaled_dot_product_attention(rope(q, offset), k, v, attn_mask=torch.ones(t, s, dtype=torch.bool).tril(s - t))
        return self.o_proj(y.transpose(1, 2).reshape(b, t, c))


class Gemma(nn.Module):
    def __init__(self, mended, words=40, width=32, heads=4, depth=4, sharing=2):
        super().__init__()
        self.source = depth - sharing - 1
        self.embed = nn.Embedding(words, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(depth))
        self.layers = nn.ModuleList(Attention(width, heads, i >= depth - sharing, mended) for i in range(depth))
        self.norm = nn.RMSNorm(width)

    def forward(self, tokens, caches=None):
        if caches is None:
            caches = [Cache() for _ in range(self.source + 1)]
        x = self.embed(tokens)
        for i, (norm, layer) in enumerate(zip(self.norms, self.layers)):
            x = x + layer(norm(x), caches[min(i, self.source)])
        return self.norm(x) @ self.embed.weight.T, caches


class Steps(nn.Module):
    """A prompt in one piece and the rest in single steps."""

    def __init__(self, mended):
        super().__init__()
        self.model = Gemma(mended)

    def forward(self, tokens, prompt: int = 4):
        y, caches = self.model(tokens[:, :prompt])
        out = [y]
        for i in range(prompt, tokens.shape[1]):
            out.append(self.model(tokens[:, i : i + 1], caches)[0])
        return torch.cat(out, 1)


def build(mended):
    torch.manual_seed(0)
    return Steps(mended).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(tokens=torch.randint(0, 40, (2, 8))), mask=it.causal())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = asks()["inputs"]["tokens"]
    return not torch.allclose(wrong()(x, 4), wrong()(x, 8), atol=1e-3) and torch.allclose(right()(x, 4), right()(x, 8), atol=1e-4)
