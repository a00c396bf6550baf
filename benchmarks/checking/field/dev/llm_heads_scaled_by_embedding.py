"""A small GPT builds each head as a module of its own and scales its scores by the width of the embedding, not by that of the head. Source: github.com/FareedKhan-dev/train-llm-from-scratch/pull/3"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["scale-model-width"]
words = "scores are divided by the root of the embedding width where each head has a quarter of it"


class CausalHead(nn.Module):
    def __init__(self, embed, size, context):
        super().__init__()
        self.embed, self.size = embed, size
        self.to_key = nn.Linear(embed, size, bias=False)
        self.to_query = nn.Linear(embed, size, bias=False)
        self.to_value = nn.Linear(embed, size, bias=False)
        self.register_buffer("lower", torch.tril(torch.ones(context, context)))

    def factor(self):
        return self.embed ** -0.5

    def forward(self, x):
        steps = x.shape[1]
        k, q, v = self.to_key(x), self.to_query(x), self.to_value(x)
        scores = torch.einsum("btd,bsd->bts", q, k) * self.factor()
        scores = scores.masked_fill(self.lower[:steps, :steps] == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class MendedHead(CausalHead):
    def factor(self):
        return self.size ** -0.5


class Heads(nn.Module):
    def __init__(self, head, embed, count, context):
        super().__init__()
        self.heads = nn.ModuleList(head(embed, embed // count, context) for _ in range(count))
        self.out = nn.Linear(embed, embed)

    def forward(self, x):
        return self.out(torch.cat([h(x) for h in self.heads], dim=-1))


class Layer(nn.Module):
    def __init__(self, head, embed, count, context):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(embed), nn.LayerNorm(embed)
        self.attention = Heads(head, embed, count, context)
        self.mlp = nn.Sequential(nn.Linear(embed, 4 * embed), nn.ReLU(), nn.Linear(4 * embed, embed))

    def forward(self, x):
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    def __init__(self, head, vocab=50, embed=32, count=4, depth=2, context=16):
        super().__init__()
        self.token, self.place = nn.Embedding(vocab, embed), nn.Embedding(context, embed)
        self.layers = nn.ModuleList(Layer(head, embed, count, context) for _ in range(depth))
        self.norm, self.logits = nn.LayerNorm(embed), nn.Linear(embed, vocab)

    def forward(self, idx):
        x = self.token(idx) + self.place(torch.arange(idx.shape[1], device=idx.device))
        for layer in self.layers:
            x = layer(x)
        return self.logits(self.norm(x))


def asks():
    import intently as it
    return dict(inputs=dict(idx=torch.randint(0, 50, (2, 8))), mask=it.causal())


def _make(head):
    torch.manual_seed(0)
    return GPT(head).eval()


def wrong():
    return _make(CausalHead)


def right():
    return _make(MendedHead)


def proof():
    x = asks()["inputs"]
    return not torch.allclose(wrong()(**x), right()(**x), atol=1e-4)
