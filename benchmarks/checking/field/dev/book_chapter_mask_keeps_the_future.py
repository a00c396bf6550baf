"""A chapter on attention passes the upper triangle, which marks what to hide elsewhere in the book, to a function that takes True for visible. Source: github.com/rasbt/LLMs-from-scratch/issues/1061"""
import intently as it
import torch
import torch.nn as nn

expect = ["mask-inverted"]
words = "every token sees exactly the tokens after it"


class ChapterAttention(nn.Module):
    def __init__(self, d_in, d_out, heads, context, mended, dropout=0.1):
        super().__init__()
        self.heads, self.d, self.dropout, self.mended = heads, d_out // heads, dropout, mended
        self.qkv = nn.Linear(d_in, 3 * d_out, bias=False)
        self.proj = nn.Linear(d_out, d_out)
        self.register_buffer("upper", torch.ones(context, context).triu(1).bool())

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d).permute(2, 0, 3, 1, 4)
        upper = self.upper[:t, :t]
        y = nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=~upper if self.mended else upper,
            dropout_p=self.dropout if self.training else 0.0, is_causal=False)
        return self.proj(y.transpose(1, 2).reshape(b, t, self.heads * self.d))


def build(mended):
    torch.manual_seed(0)
    return ChapterAttention(32, 32, 4, 16, mended).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 6, 32)), mask=it.causal())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = asks()["inputs"]["x"]
    y = x.clone()
    y[:, -1] += 1
    return not torch.allclose(wrong()(x)[:, 1], wrong()(y)[:, 1], atol=1e-4) and torch.allclose(right()(x)[:, 1], right()(y)[:, 1], atol=1e-6)
