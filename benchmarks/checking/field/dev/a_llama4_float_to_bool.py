"""A float mask with the lowest number where keys are hidden is cast to bool for scaled_dot_product_attention, which then attends exactly to the hidden keys. Source: github.com/huggingface/transformers/pull/38094"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["mask-inverted", "mask-other"]
words = "hidden keys become True, which means seen"


class Attention(nn.Module):
    def __init__(self, width, heads, groups, chunk):
        super().__init__()
        self.heads, self.groups, self.chunk, self.d = heads, groups, chunk, width // heads
        self.q_proj, self.o_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k_proj, self.v_proj = nn.Linear(width, groups * self.d, bias=False), nn.Linear(width, groups * self.d, bias=False)

    def forward(self, x, mask):
        b, t, c = x.shape
        q = self.q_proj(x).view(b, t, self.heads, self.d).transpose(1, 2)
        k, v = (f(x).view(b, t, self.groups, self.d).transpose(1, 2).repeat_interleave(self.heads // self.groups, 1) for f in (self.k_proj, self.v_proj))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(b, t, c))


class TextModel(nn.Module):
    def __init__(self, cast, words=40, width=32):
        super().__init__()
        self.cast = cast
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(32, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.layers = nn.ModuleList(Attention(width, 4, 2, None) for _ in range(2))
        self.lm_head = nn.Linear(width, words, bias=False)

    def causal(self, x, attention_mask):
        t = x.shape[1]
        low = torch.finfo(x.dtype).min
        mask = torch.full((t, t), low).triu(1)[None, None].expand(x.shape[0], 1, -1, -1).clone()
        if attention_mask is not None:
            mask = mask.masked_fill(attention_mask[:, None, None] == 0, low)
        return mask.bool() if self.cast else mask

    def forward(self, input_ids, attention_mask=None):
        x = self.embed(input_ids) + self.place(torch.arange(input_ids.shape[1]))
        mask = self.causal(x, attention_mask)
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x), mask)
        return self.lm_head(x)


def build(cast):
    torch.manual_seed(0)
    return TextModel(cast).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]])
    return dict(inputs=dict(input_ids=torch.randint(0, 40, (2, 7)), attention_mask=mask), mask=it.causal() & it.padding([7, 5]))


def wrong():
    return build(True)


def right():
    return build(False)


def proof():
    a = asks()["inputs"]
    b = dict(a, input_ids=a["input_ids"].clone())
    b["input_ids"][:, -1] = (b["input_ids"][:, -1] + 1) % 40
    return not torch.allclose(wrong()(**a)[:, 0], wrong()(**b)[:, 0], atol=1e-4, equal_nan=True) and torch.allclose(right()(**a)[:, 0], right()(**b)[:, 0], atol=1e-6)
