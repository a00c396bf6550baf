"""With same_length the mask of Transformer-XL also hides the oldest memory of each query, because the lower triangle is not shifted by one. Source: github.com/huggingface/transformers/pull/14832"""
import torch
import torch.nn as nn
import intently as it

expect = ["window-off-by-one", "mask-other"]
words = "each query sees one memory fewer than the memory is long"


class MemoryAttention(nn.Module):
    def __init__(self, width=32, heads=4, memory=6):
        super().__init__()
        self.heads, self.size, self.memory = heads, width // heads, memory
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_kv = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def hidden(self, t, s):
        ones = torch.ones(t, s, dtype=torch.uint8)
        extra = s - self.memory
        shift = t - extra if extra > 0 else t
        return (ones.triu(1 + s - t) + ones.tril(-shift)).bool()

    def forward(self, x, mems):
        b, t, c = x.shape
        cat = torch.cat([mems, x], 1)
        split = lambda a: a.view(b, -1, self.heads, self.size).transpose(1, 2)
        k, v = self.to_kv(cat).chunk(2, -1)
        z = split(self.to_q(x)) @ split(k).mT / self.size ** 0.5
        z = z.masked_fill(self.hidden(t, cat.shape[1]), -1e30)
        y = (z.softmax(-1) @ split(v)).transpose(1, 2).reshape(b, t, c)
        return self.norm(x + self.out(y))


class MemoryAttentionMended(MemoryAttention):
    def hidden(self, t, s):
        ones = torch.ones(t, s, dtype=torch.uint8)
        extra = s - self.memory
        shift = t - extra if extra > 0 else t
        return (ones.triu(1 + s - t) + ones.tril(-shift - 1)).bool()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 6, 32), mems=torch.randn(2, 6, 32)), mask=it.window(6, 0))


def wrong():
    torch.manual_seed(0)
    return MemoryAttention().eval()


def right():
    torch.manual_seed(0)
    return MemoryAttentionMended().eval()


def proof():
    i = asks()["inputs"]
    seen = ~wrong().hidden(6, 12)
    return not seen[0, 0] and bool((~right().hidden(6, 12))[0, 0]) and not torch.allclose(wrong()(**i), right()(**i), atol=1e-6)
