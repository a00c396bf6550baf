"""The flash path of a small GPT passes dropout_p=self.dropout also in evaluation, where the manual path drops nothing. Source: github.com/karpathy/nanoGPT/pull/240"""
import torch
import torch.nn as nn
import torch.nn.functional as F
import intently as it

expect = ["dropout-in-eval"]
words = "scaled_dot_product_attention drops weights in eval()"


class CausalAttention(nn.Module):
    def __init__(self, width=32, heads=4, dropout=0.2, bias=False):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attn, self.proj = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
        self.after = nn.Dropout(dropout)

    def rate(self):
        return self.dropout

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (a.view(b, t, self.heads, c // self.heads).transpose(1, 2) for a in self.attn(x).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=self.rate(), is_causal=True)
        return self.after(self.proj(y.transpose(1, 2).contiguous().view(b, t, c)))


class CausalAttentionMended(CausalAttention):
    def rate(self):
        return self.dropout if self.training else 0.0


class Gpt(nn.Module):
    def __init__(self, attention, vocab=25, width=32):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(16, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.attentions = nn.ModuleList(attention() for _ in range(2))
        self.feeds = nn.ModuleList(nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width), nn.Dropout(0.2)) for _ in range(2))
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for i, (attend, feed) in enumerate(zip(self.attentions, self.feeds)):
            x = x + attend(self.norms[2 * i](x))
            x = x + feed(self.norms[2 * i + 1](x))
        return self.head(x)


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(idx=torch.randint(0, 25, (2, 8))), mask=it.causal())


def wrong():
    torch.manual_seed(0)
    return Gpt(CausalAttention).eval()


def right():
    torch.manual_seed(0)
    return Gpt(CausalAttentionMended).eval()


def proof():
    i = asks()["inputs"]
    w, r = wrong(), right()
    return not torch.allclose(w(**i), w(**i), atol=1e-5) and torch.allclose(r(**i), r(**i))
