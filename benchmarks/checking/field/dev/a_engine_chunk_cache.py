"""Attention with a cache is causal only while queries and keys are equally many, so a chunk of several tokens after a cached prefix sees its own future. Source: github.com/open-lm-engine/lm-engine/pull/498"""
import torch
import torch.nn as nn
import torch.nn.functional as F
import intently as it

expect = ["mask-in-cache", "mask-missing", "cached-step-differs", "leak-later"]
words = "several new tokens beside a cache are not masked among each other"


class CachedAttention(nn.Module):
    causal = True

    def __init__(self, width=32, heads=4, kv_heads=2):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.attn = nn.Linear(width, (heads + 2 * kv_heads) * self.size)
        self.proj = nn.Linear(width, width)

    def sdpa(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal and q.shape[2] == k.shape[2])

    def forward(self, x, past=None):
        b, t, _ = x.shape
        x = self.attn(x).view(b, t, -1, self.size).transpose(1, 2)
        q, k, v = x.split([self.heads, self.kv_heads, self.kv_heads], 1)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        present = (k, v)
        k, v = (a.repeat_interleave(self.heads // self.kv_heads, 1) for a in present)
        return self.proj(self.sdpa(q, k, v).transpose(1, 2).reshape(b, t, -1)), present


class CachedAttentionMended(CachedAttention):
    def sdpa(self, q, k, v):
        t, s = q.shape[2], k.shape[2]
        seen = torch.ones(t, s, dtype=torch.bool).tril(s - t)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def asks():
    torch.manual_seed(1)
    past = (torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8))
    return dict(inputs=dict(x=torch.randn(2, 3, 32), past=past), mask=it.causal())


def wrong():
    torch.manual_seed(0)
    return CachedAttention().eval()


def right():
    torch.manual_seed(0)
    return CachedAttentionMended().eval()


def proof():
    i = asks()["inputs"]
    same = torch.allclose(wrong()(i["x"])[0], right()(i["x"])[0], atol=1e-5)
    return same and not torch.allclose(wrong()(**i)[0], right()(**i)[0], atol=1e-5)
