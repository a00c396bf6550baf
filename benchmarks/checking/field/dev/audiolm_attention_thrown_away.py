"""Since a cache was added, a transformer for audio tokens puts the output of self-attention in a name that nothing reads: x is added to itself. Source: github.com/lucidrains/audiolm-pytorch/pull/265"""
import torch
from torch import nn
import torch.nn.functional as F

expect = []
words = "the output of self-attention is not used, so no token ever influences another one"


class Attention(nn.Module):
    def __init__(self, width, heads=4, causal=True, p=0.1):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm = nn.LayerNorm(width)
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_kv = nn.Linear(width, 2 * width, bias=False)
        self.drop = nn.Dropout(p)
        self.to_out = nn.Linear(width, width, bias=False)

    def forward(self, x, context=None, cache=None):
        x = self.norm(x)
        source = x if context is None else context
        q = self.to_q(x)
        k, v = self.to_kv(source).chunk(2, dim=-1)
        if cache is not None:
            k, v = torch.cat((cache[0], k), dim=1), torch.cat((cache[1], v), dim=1)
        grown = (k, v)
        q, k, v = (m.unflatten(-1, (self.heads, -1)).transpose(1, 2) for m in (q, k, v))
        z = q @ k.mT * q.shape[-1] ** -0.5
        if self.causal:
            t, s = z.shape[-2:]
            z = z.masked_fill(torch.ones(t, s, dtype=torch.bool).triu(s - t + 1), -torch.finfo(z.dtype).max)
        y = self.drop(z.softmax(-1)) @ v
        return self.to_out(y.transpose(1, 2).flatten(2)), grown


class Transformer(nn.Module):
    def __init__(self, width=32, depth=2, heads=4):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([
                Attention(width, heads),
                nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)),
            ]) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)

    def after_attention(self, attended, x, residual):
        return x + residual

    def forward(self, x, caches=None):
        new = []
        for number, (attention, feed) in enumerate(self.layers):
            residual = x
            attended, cache = attention(x, cache=None if caches is None else caches[number])
            new.append(cache)
            x = self.after_attention(attended, x, residual)
            x = feed(x) + x
        return self.norm(x), new


class TransformerMended(Transformer):
    def after_attention(self, attended, x, residual):
        return attended + residual


class SemanticTokens(nn.Module):
    def __init__(self, kind, tokens=24, width=32):
        super().__init__()
        self.begin = nn.Parameter(torch.randn(width))
        self.embed = nn.Embedding(tokens + 1, width)
        self.transformer = kind(width)
        self.to_logits = nn.Linear(width, tokens + 1)

    def forward(self, ids):
        x = torch.cat((self.begin.expand(len(ids), 1, -1), self.embed(ids)), dim=1)
        return self.to_logits(self.transformer(x)[0])


def asks():
    import intently as it
    return dict(inputs=dict(ids=torch.randint(0, 24, (2, 7))), mask=it.causal())


def wrong():
    torch.manual_seed(0)
    return SemanticTokens(Transformer).eval()


def right():
    torch.manual_seed(0)
    return SemanticTokens(TransformerMended).eval()


def proof():
    a = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])
    b = a.clone()
    b[0, 0] = 9
    with torch.no_grad():
        blind = torch.equal(wrong()(a)[:, 3:], wrong()(b)[:, 3:])
        sees = not torch.allclose(right()(a)[:, 3:], right()(b)[:, 3:], atol=1e-5)
    return blind and sees


if __name__ == "__main__":
    print(proof())
