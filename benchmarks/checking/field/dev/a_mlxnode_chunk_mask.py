"""Attention is causal only where the step has as many tokens as there are keys, so a chunk of several tokens after cached ones has no mask. Source: github.com/mlx-node/mlx-node/pull/24"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["mask-in-cache", "cached-step-differs", "leak-later"]
words = "tokens of a chunk see later tokens of the same chunk"


class Attention(nn.Module):
    def __init__(self, width, heads, mended):
        super().__init__()
        self.heads, self.mended = heads, mended
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x, past):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        s = k.shape[2]
        mask = None
        if t > 1 and (t == s or self.mended):
            mask = torch.ones(t, s, dtype=torch.bool).tril(s - t)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o(y.transpose(1, 2).reshape(b, t, c)), (k, v)


class Qwen(nn.Module):
    def __init__(self, mended, words=40, width=32, depth=2):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(32, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(depth))
        self.layers = nn.ModuleList(Attention(width, 4, mended) for _ in range(depth))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, input_ids, past_key_values=None):
        start = past_key_values[0][0].shape[2] if past_key_values else 0
        x = self.embed(input_ids) + self.place(start + torch.arange(input_ids.shape[1]))
        new = []
        for n, (norm, layer) in enumerate(zip(self.norms, self.layers)):
            y, kv = layer(norm(x), past_key_values[n] if past_key_values else None)
            x = x + y
            new.append(kv)
        return self.head(x), new


class Chunked(nn.Module):
    """Prefill in chunks."""

    def __init__(self, mended):
        super().__init__()
        self.model = Qwen(mended)

    def forward(self, input_ids, size: int = 3):
        out, past = [], None
        for part in input_ids.split(size, 1):
            y, past = self.model(part, past)
            out.append(y)
        return torch.cat(out, 1)


def build(mended):
    torch.manual_seed(0)
    return Chunked(mended).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(input_ids=torch.randint(0, 40, (2, 9))), mask=it.causal())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = asks()["inputs"]["input_ids"]
    return not torch.allclose(wrong()(x, 3), wrong()(x, 9), atol=1e-3) and torch.allclose(right()(x, 3), right()(x, 9), atol=1e-5)
