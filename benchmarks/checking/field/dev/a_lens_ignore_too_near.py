"""An interpretability library writes -1e5 into masked scores, and a model whose scores lie below that attends to the masked keys. Source: github.com/TransformerLensOrg/TransformerLens/pull/319"""
import torch
import torch.nn as nn

expect = ["mask-too-weak", "large-scores"]
words = "-1e5 is not the lowest score: later keys win where real scores are lower"


class HookedAttention(nn.Module):
    def __init__(self, width, heads, ignore, spread):
        super().__init__()
        d = width // heads
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.randn(heads, width, d) * width ** -0.5) for _ in range(3))
        self.W_O = nn.Parameter(torch.randn(heads, d, width) * width ** -0.5)
        self.W_Q.data *= spread
        self.W_K.data *= spread
        self.register_buffer("mask", torch.ones(32, 32).tril().bool())
        self.register_buffer("IGNORE", torch.tensor(ignore))

    def forward(self, x):
        q, k, v = (torch.einsum("bpm,nmh->bpnh", x, w) for w in (self.W_Q, self.W_K, self.W_V))
        scores = torch.einsum("bqnh,bknh->bnqk", q, k) / q.shape[-1] ** 0.5
        n = x.shape[1]
        pattern = torch.where(self.mask[:n, :n], scores, self.IGNORE).softmax(-1)
        return torch.einsum("bnqk,bknh,nhm->bqm", pattern, v, self.W_O)


class Hooked(nn.Module):
    def __init__(self, ignore, words=40, width=32, heads=4):
        super().__init__()
        self.embed, self.pos = nn.Embedding(words, width), nn.Embedding(32, width)
        self.ln = nn.LayerNorm(width)
        self.attn = HookedAttention(width, heads, ignore, 900.0)
        self.unembed = nn.Linear(width, words)

    def forward(self, tokens):
        x = self.embed(tokens) + self.pos(torch.arange(tokens.shape[1]))
        return self.unembed(x + self.attn(self.ln(x)))


def build(ignore):
    torch.manual_seed(0)
    return Hooked(ignore).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(tokens=torch.randint(0, 40, (2, 8))), mask=it.causal())


def wrong():
    return build(-1e5)


def right():
    return build(float("-inf"))


def proof():
    a = asks()["inputs"]["tokens"]
    b = a.clone()
    b[:, -1] = (b[:, -1] + 1) % 40
    return not torch.allclose(wrong()(a)[:, :-1], wrong()(b)[:, :-1], atol=1e-3) and torch.allclose(right()(a)[:, :-1], right()(b)[:, :-1], atol=1e-4)
