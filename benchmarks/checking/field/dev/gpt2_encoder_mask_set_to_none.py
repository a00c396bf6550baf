"""A GPT-2 with cross-attention sets the caller's mask of the encoder to None before it builds its own, so padding of the source is attended to. Source: github.com/huggingface/transformers/pull/47946"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["padding-attended", "mask-missing"]
words = "the mask of the encoder's padding is thrown away, so cross-attention sees padded states"


class Attention(nn.Module):
    def __init__(self, width, heads, cross=False):
        super().__init__()
        self.heads, self.cross = heads, cross
        self.q_attn = nn.Linear(width, width)
        self.c_attn = nn.Linear(width, 2 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x, states=None, mask=None):
        states = x if states is None else states
        split = lambda y: y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q = split(self.q_attn(x))
        k, v = (split(y) for y in self.c_attn(states).chunk(2, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=not self.cross)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_cross, self.ln_2 = (nn.LayerNorm(width) for _ in range(3))
        self.attn, self.crossattention = Attention(width, heads), Attention(width, heads, cross=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, states, mask):
        x = x + self.attn(self.ln_1(x))
        x = x + self.crossattention(self.ln_cross(x), states, mask)
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    def __init__(self, vocab=45, width=32, heads=4, depth=2, context=16):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)

    def cross_mask(self, encoder_attention_mask):
        return encoder_attention_mask

    def forward(self, input_ids, encoder_hidden_states, encoder_attention_mask=None):
        mask = self.cross_mask(encoder_attention_mask)
        if mask is not None:
            mask = mask.bool()[:, None, None, :]
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.h:
            x = block(x, encoder_hidden_states, mask)
        return self.ln_f(x) @ self.wte.weight.t()


class Reported(GPT2):
    def cross_mask(self, encoder_attention_mask):
        encoder_attention_mask = None
        return encoder_attention_mask


def asks():
    mask = (torch.arange(9)[None] < torch.tensor([[9], [6]])).long()
    return dict(inputs=dict(input_ids=torch.randint(0, 45, (2, 7)), encoder_hidden_states=torch.randn(2, 9, 32), encoder_attention_mask=mask))


def _make(cls):
    torch.manual_seed(0)
    return cls().eval()


def wrong():
    return _make(Reported)


def right():
    return _make(GPT2)


def proof():
    x = asks()["inputs"]
    other = dict(x, encoder_hidden_states=x["encoder_hidden_states"].clone())
    other["encoder_hidden_states"][1, 6:] += 1
    bad, good = wrong(), right()
    return torch.allclose(good(**x), good(**other)) and not torch.allclose(bad(**x), bad(**other), atol=1e-4)
