"""A language model with keys and values condensed from n tokens to k slots lays a causal mask over (tokens, slots), but each slot is made of all tokens. Source: github.com/tatp22/linformer-pytorch/issues/16"""
import torch
from torch import nn

expect = ["leak-later", "mask-other", "mask-missing"]
words = "slot j is a mix of all tokens, later ones too, so a triangle over slots hides no future"


class CondensedAttention(nn.Module):
    """Linformer's attention: keys and values of n tokens become k slots."""

    def __init__(self, width, heads, longest, slots):
        super().__init__()
        self.heads, self.d = heads, width // heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.e, self.f = nn.Linear(longest, slots, bias=False), nn.Linear(longest, slots, bias=False)
        self.out = nn.Linear(width, width)

    def condense(self, k, v):
        n = k.shape[-2]
        return (torch.einsum("kn,bhnd->bhkd", self.e.weight[:, :n], k),
                torch.einsum("kn,bhnd->bhkd", self.f.weight[:, :n], v))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, self.d)).transpose(1, 2) for f in (self.q, self.k, self.v))
        k, v = self.condense(k, v)
        scores = q @ k.transpose(-2, -1) * self.d ** -0.5
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).tril()
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class FullAttention(CondensedAttention):
    """The option full_attention=True: nothing is condensed where order matters."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        del self.e, self.f

    def condense(self, k, v):
        return k, v


class LanguageModel(nn.Module):
    def __init__(self, attention, vocab=40, width=32, heads=2, depth=2, longest=8, slots=4):
        super().__init__()
        self.token, self.place = nn.Embedding(vocab, width), nn.Embedding(longest, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.attentions = nn.ModuleList(attention(width, heads, longest, slots) for _ in range(depth))
        self.feeds = nn.ModuleList(nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)) for _ in range(depth))
        self.logits = nn.Linear(width, vocab)

    def forward(self, tokens):
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        for i, (attention, feed) in enumerate(zip(self.attentions, self.feeds)):
            x = x + attention(self.norms[2 * i](x))
            x = x + feed(self.norms[2 * i + 1](x))
        return self.logits(x)


def asks():
    import intently as it
    return dict(inputs=dict(tokens=torch.randint(0, 40, (2, 8))), mask=it.causal())


def _make(attention):
    torch.manual_seed(0)
    return LanguageModel(attention).eval()


def wrong():
    return _make(CondensedAttention)


def right():
    return _make(FullAttention)


def proof():
    t = asks()["inputs"]["tokens"]
    other = t.clone()
    other[:, -1] = (other[:, -1] + 1) % 40
    bad, good = wrong(), right()
    return torch.equal(good(t)[:, :-1], good(other)[:, :-1]) and not torch.allclose(bad(t)[:, :-1], bad(other)[:, :-1], atol=1e-5)
