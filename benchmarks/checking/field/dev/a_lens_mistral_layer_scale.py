"""A port of GPT-2 checkpoints trained with scores divided by the number of the layer leaves that division out. Source: github.com/TransformerLensOrg/TransformerLens/pull/27"""
import torch
import torch.nn as nn

expect = ["projection-scaled", "other-scale", "differs-from-reference"]
words = "scores of layer n are n times too large: the reference divides by sqrt(d) and by n"


class Attention(nn.Module):
    def __init__(self, width, heads, by):
        super().__init__()
        self.heads, self.by = heads, by
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("bias", torch.ones(32, 32).tril().bool())

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (a.view(b, t, self.heads, -1).transpose(1, 2) for a in self.c_attn(x).split(c, 2))
        z = q @ k.transpose(-1, -2) / (q.shape[-1] ** 0.5 * self.by)
        z = z.masked_fill(~self.bias[:t, :t], float("-inf"))
        return self.c_proj((z.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads, by):
        super().__init__()
        self.ln_1, self.ln_2, self.attn = nn.LayerNorm(width), nn.LayerNorm(width), Attention(width, heads, by)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Mistral(nn.Module):
    def __init__(self, by_layer, words=40, width=32, heads=4, depth=4):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(32, width)
        self.h = nn.ModuleList(Block(width, heads, i + 1 if by_layer else 1) for i in range(depth))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


def build(by_layer):
    torch.manual_seed(0)
    return Mistral(by_layer).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(tokens=torch.randint(0, 40, (2, 8))), mask=it.causal(), like=right())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = asks()["inputs"]
    return not torch.allclose(wrong()(**a), right()(**a), atol=1e-3)
