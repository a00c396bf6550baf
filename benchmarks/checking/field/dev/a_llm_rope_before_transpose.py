"""A rotary function for (batch, heads, time, d) is called on queries and keys of (batch, time, heads, d), so its angles run over heads. Source: github.com/rasbt/LLMs-from-scratch/issues/411"""
import torch
import torch.nn as nn

expect = ["rotary-over-heads", "rotation-missing"]
words = "angles depend on the head and not on the position"


def tables(d, longest, base=10000.0):
    angle = torch.arange(longest).float()[:, None] / base ** (torch.arange(0, d, 2).float() / d)
    angle = torch.cat((angle, angle), 1)
    return angle.cos(), angle.sin()


def compute_rope(x, cos, sin):
    n, d = x.shape[2], x.shape[3]
    a, b = x[..., : d // 2], x[..., d // 2:]
    return x * cos[:n] + torch.cat((-b, a), -1) * sin[:n]


class Attention(nn.Module):
    def __init__(self, width, heads, longest, after):
        super().__init__()
        self.heads, self.d, self.after = heads, width // heads, after
        self.W_query, self.W_key, self.W_value, self.out_proj = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.register_buffer("mask", torch.triu(torch.ones(longest, longest), 1).bool())
        cos, sin = tables(self.d, longest)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, self.d) for f in (self.W_query, self.W_key, self.W_value))
        if not self.after:
            q, k = compute_rope(q, self.cos, self.sin), compute_rope(k, self.cos, self.sin)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if self.after:
            q, k = compute_rope(q, self.cos, self.sin), compute_rope(k, self.cos, self.sin)
        z = (q @ k.transpose(2, 3)).masked_fill(self.mask[:t, :t], -torch.inf)
        y = torch.softmax(z / self.d ** 0.5, -1) @ v
        return self.out_proj(y.transpose(1, 2).reshape(b, t, c))


class Llama2(nn.Module):
    def __init__(self, after, words=40, width=32, heads=4, depth=2):
        super().__init__()
        self.tok_emb = nn.Embedding(words, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(depth))
        self.att = nn.ModuleList(Attention(width, heads, 32, after) for _ in range(depth))
        self.out_head = nn.Linear(width, words, bias=False)

    def forward(self, in_idx):
        x = self.tok_emb(in_idx)
        for norm, att in zip(self.norms, self.att):
            x = x + att(norm(x))
        return self.out_head(x)


def build(after):
    torch.manual_seed(0)
    return Llama2(after).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(in_idx=torch.randint(0, 40, (2, 8))), mask=it.causal(), like=right())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    ids = torch.tensor([[3, 5, 7, 9], [5, 3, 7, 9]])            # last token sees the same set in another order
    a, b = wrong(), right()
    one = a.att[0](a.tok_emb(ids))[:, -1]
    two = b.att[0](b.tok_emb(ids))[:, -1]
    return torch.allclose(one[0], one[1], atol=1e-5) and not torch.allclose(two[0], two[1], atol=1e-3)
