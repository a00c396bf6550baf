"""A causal model is made bidirectional by filling its whole additive mask with zeros, so padding is unmasked together with the future. Source: github.com/WhereIsAI/BiLLM/issues/6"""
import torch
import torch.nn as nn
import torch.nn.functional as F
import intently as it

expect = ["padding-attended"]
words = "the bidirectional mask lets every token attend to padding"


def rope(x):
    d = x.shape[-1] // 2
    a = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(d) / d)
    one, two = x.chunk(2, -1)
    return torch.cat([one * a.cos() - two * a.sin(), two * a.cos() + one * a.sin()], -1)


class Block(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, kv_heads * self.size, bias=False) for _ in range(2))
        self.a, self.b = nn.RMSNorm(width), nn.RMSNorm(width)
        self.gate, self.up, self.down = nn.Linear(width, 48, bias=False), nn.Linear(width, 48, bias=False), nn.Linear(48, width, bias=False)

    def forward(self, x, mask):
        b, t, c = x.shape
        h = self.a(x)
        q = self.q(h).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = (f(h).view(b, t, self.kv_heads, -1).transpose(1, 2).repeat_interleave(self.heads // self.kv_heads, 1) for f in (self.k, self.v))
        z = rope(q) @ rope(k).mT / self.size ** 0.5 + mask
        x = x + self.o((z.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))
        h = self.b(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Embedder(nn.Module):
    def __init__(self, vocab=35, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width, 4, 2) for _ in range(2))
        self.norm = nn.RMSNorm(width)

    def causal(self, attention_mask):
        t = attention_mask.shape[1]
        lowest = torch.finfo(torch.float32).min
        hidden = torch.ones(t, t).triu(1).bool()[None, None] | ~attention_mask.bool()[:, None, None]
        return torch.zeros(hidden.shape).masked_fill(hidden, lowest)

    def bidirectional(self, attention_mask):
        return torch.zeros_like(self.causal(attention_mask))

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids)
        mask = self.bidirectional(attention_mask)
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)


class EmbedderMended(Embedder):
    def bidirectional(self, attention_mask):
        hidden = ~attention_mask.bool()[:, None, None]
        return torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)


def asks():
    torch.manual_seed(1)
    lengths = torch.tensor([8, 5])
    real = torch.arange(8)[None] < lengths[:, None]
    return dict(inputs=dict(input_ids=torch.randint(1, 35, (2, 8)) * real, attention_mask=real.long()), mask=it.padding(lengths))


def wrong():
    torch.manual_seed(0)
    return Embedder().eval()


def right():
    torch.manual_seed(0)
    return EmbedderMended().eval()


def proof():
    i = asks()["inputs"]
    return not torch.allclose(wrong()(**i)[1, :5], right()(**i)[1, :5], atol=1e-5)
