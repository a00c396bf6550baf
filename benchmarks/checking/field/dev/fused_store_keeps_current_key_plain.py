"""A fused step rotates the query in place and writes the rotated key to the cache only; attention over the current tokens reads the key that was not rotated. Source: github.com/kvcache-ai/sglang/pull/66"""
import intently as it
import torch
import torch.nn.functional as F
from torch import nn

expect = ["keys-not-rotated", "cached-step-differs"]
words = "prefill turns queries and leaves keys; later steps find turned keys in the cache"


def asks():
    return dict(inputs=dict(x=torch.randn(2, 6, 32)), mask=it.causal())


class KeyValueStore:
    def __init__(self):
        self.k, self.v = [], []

    def __len__(self):
        return sum(k.shape[1] for k in self.k)


def rope_and_store(q, k, v, store, write_back):
    """(b, t, h, d). Turns q in place, stores the turned k; gives k back turned if write_back says so."""
    d = q.shape[-1]
    angle = (len(store) + torch.arange(q.shape[1])).float()[:, None, None] * 20.0 ** (-torch.arange(0, d, 2) / d)
    cos, sin = angle.cos(), angle.sin()

    def turned(x):
        a, b = x[..., : d // 2], x[..., d // 2:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    stored = turned(k)
    store.k.append(stored)
    store.v.append(v)
    return turned(q), stored if write_back else k


class ServedAttention(nn.Module):
    def __init__(self, width, heads, write_back):
        super().__init__()
        self.heads, self.write_back = heads, write_back
        self.qkv, self.o = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x, store=None):
        store = KeyValueStore() if store is None else store
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        old_k, old_v = list(store.k), list(store.v)
        q, k = rope_and_store(q, k, v, store, self.write_back)
        k, v = torch.cat(old_k + [k], 1), torch.cat(old_v + [v], 1)
        t, s = q.shape[1], k.shape[1]
        seen = torch.ones(t, s, dtype=torch.bool).tril(s - t)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=seen)
        return self.o(y.transpose(1, 2).flatten(2))


def make(write_back):
    torch.manual_seed(10)
    return ServedAttention(32, 2, write_back).eval()


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    x = torch.randn(2, 6, 32)
    apart = []
    for m in (wrong(), right()):
        store = KeyValueStore()
        steps = torch.cat([m(x[:, i:i + 1], store) for i in range(6)], 1)
        apart.append((steps - m(x)).abs().max().item())
    return apart[0] > 1e-2 and apart[1] < 1e-5 and (wrong()(x) - right()(x)).abs().max().item() > 1e-2
