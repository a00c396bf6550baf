"""A GPT replaces hidden scores by -10,000; a model whose scores fall below it attends to the future. Source: github.com/karpathy/minGPT/issues/75"""
import torch
from torch import nn
import intently as it

expect = ["mask-too-weak"]
words = "hidden scores are a finite -1e4, so visible scores can drive below it"


def asks():
    torch.manual_seed(3)
    return dict(inputs=dict(ids=torch.randint(0, 24, (2, 8))), mask=it.causal())


class CausalHeads(nn.Module):
    low = -1e4

    def __init__(self, width, heads, longest=16):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("past", torch.ones(longest, longest).tril().bool(), persistent=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.reshape(b, t, self.heads, -1).permute(0, 2, 1, 3) for z in self.c_attn(x).chunk(3, -1))
        score = q @ k.transpose(-1, -2) / (c // self.heads) ** 0.5
        score = torch.where(self.past[:t, :t], score, torch.tensor(self.low, dtype=score.dtype))
        return self.c_proj((score.softmax(-1) @ v).permute(0, 2, 1, 3).reshape(b, t, c))


class CausalHeadsMended(CausalHeads):
    low = float("-inf")


class Block(nn.Module):
    def __init__(self, kind, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = kind(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(24, 32), nn.Embedding(16, 32)
        self.h = nn.ModuleList(Block(kind, 32, 4) for _ in range(2))
        self.ln_f, self.head = nn.LayerNorm(32), nn.Linear(32, 24, bias=False)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


def wrong():
    torch.manual_seed(0)
    return GPT(CausalHeads).eval()


def right():
    torch.manual_seed(0)
    return GPT(CausalHeadsMended).eval()


def proof():
    x = asks()["inputs"]["ids"]
    y = x.clone()
    y[:, -1] = (y[:, -1] + 1) % 24

    def moved(model):
        with torch.no_grad():
            for block in model.h:                                  # queries against keys, as the report's model learned
                block.attn.c_attn.weight[32:64] = -block.attn.c_attn.weight[:32]
                block.attn.c_attn.weight[:64] *= 500
            return (model(x) - model(y))[:, :-1].abs().max() > 1e-4
    return bool(moved(wrong()) and not moved(right()))
