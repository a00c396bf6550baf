"""A BERT that ranks pairs of texts runs through a CPU kernel that masks every extend stage as causal, bidirectional layers included. Source: github.com/sgl-project/sglang/pull/35434"""
import torch
from torch import nn

expect = ["mask-other"]
words = "an encoder's layers are masked causally, so the first token, which is read out, sees only itself"


def extend_attention(q, k, v, lengths, is_causal=True):
    """(b, h, t, d), block by block of keys with a running softmax, as the kernel does it."""
    b, h, t, d = q.shape
    s = k.shape[2]
    top = torch.full((b, h, t, 1), float("-inf"))
    total, out = torch.zeros(b, h, t, 1), torch.zeros_like(q)
    rows = torch.arange(t)[:, None]
    for start in range(0, s, 4):
        cols = torch.arange(start, min(start + 4, s))
        z = q @ k[:, :, cols].transpose(-2, -1) * d ** -0.5
        seen = (cols[None] < lengths[:, None])[:, None, None]
        if is_causal:
            seen = seen & (cols[None] <= rows)
        z = z.masked_fill(~seen, float("-inf"))
        new = torch.maximum(top, z.amax(-1, keepdim=True))
        safe = new.masked_fill(new.isinf(), 0.0)
        p = torch.exp(z - safe)
        carry = torch.exp(top - safe)
        total = total * carry + p.sum(-1, keepdim=True)
        out = out * carry + p @ v[:, :, cols]
        top = new
    return out / total


class BertLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.dense = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def backend(self, q, k, v, lengths):
        return extend_attention(q, k, v, lengths, is_causal=False)

    def forward(self, x, lengths):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        y = self.backend(q, k, v, lengths).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.dense(y))
        return self.norm2(x + self.feed(x))


class ReportedLayer(BertLayer):
    def backend(self, q, k, v, lengths):
        return extend_attention(q, k, v, lengths)


class Reranker(nn.Module):
    def __init__(self, layer, vocab=60, width=32, heads=4, depth=2, context=16):
        super().__init__()
        self.word, self.place, self.kind = nn.Embedding(vocab, width), nn.Embedding(context, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(layer(width, heads) for _ in range(depth))
        self.score = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, input_ids, token_type_ids, lengths):
        x = self.norm(self.word(input_ids) + self.place(torch.arange(input_ids.shape[1])) + self.kind(token_type_ids))
        for layer in self.layers:
            x = layer(x, lengths)
        return self.score(x[:, 0])


def asks():
    import intently as it
    kinds = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 0, 0, 0]])
    ids = torch.randint(1, 60, (2, 9))
    ids[:, 0] = 1
    ids[1, 6:] = 0
    return dict(inputs=dict(input_ids=ids, token_type_ids=kinds, lengths=torch.tensor([9, 6])), mask=it.padding([9, 6]))


def _make(layer):
    torch.manual_seed(0)
    return Reranker(layer).eval()


def wrong():
    return _make(ReportedLayer)


def right():
    return _make(BertLayer)


def proof():
    x = asks()["inputs"]
    s = wrong()(**x)
    q, k, v = torch.randn(3, 2, 2, 9, 8)
    seen = (torch.arange(9)[None] < x["lengths"][:, None])[:, None, None]
    plain = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    exact = torch.allclose(plain, extend_attention(q, k, v, x["lengths"], False), atol=1e-5)
    return exact and torch.allclose(s[0], s[1]) and not torch.allclose(*right()(**x), atol=1e-4)
