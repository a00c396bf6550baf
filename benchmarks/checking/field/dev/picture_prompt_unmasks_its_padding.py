"""A vision language model hides padding first and then opens every column of token type 0, which padding on the left has too. Source: github.com/huggingface/transformers/issues/35855"""
import intently as it
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["padding-attended", "mask-other"]
words = "the prefix is made visible after padding is hidden, and padding counts as prefix"


def turn(x, angle):
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class GemmaHeads(nn.Module):
    def __init__(self, width, heads, groups):
        super().__init__()
        self.heads, self.groups, self.d = heads, groups, width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(width, groups * self.d, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x, mask, places):
        b, t, c = x.shape
        q = self.q_proj(x).view(b, t, self.heads, self.d).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.groups, self.d).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.groups, self.d).transpose(1, 2)
        angle = places[..., None] * 10000.0 ** (-torch.arange(0, self.d, 2) / self.d)
        q, k = turn(q, angle), turn(k, angle)
        k, v = (y.repeat_interleave(self.heads // self.groups, 1) for y in (k, v))
        scores = q @ k.transpose(2, 3) * self.d ** -0.5 + mask
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class GemmaLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.self_attn = GemmaHeads(width, 4, 2)
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.gate, self.up, self.down = nn.Linear(width, 48, bias=False), nn.Linear(width, 48, bias=False), nn.Linear(48, width, bias=False)

    def forward(self, x, mask, places):
        x = x + self.self_attn(self.norm1(x), mask, places)
        y = self.norm2(x)
        return x + self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y))


class PictureGemma(nn.Module):
    picture = 1                                     # the token that stands for a patch

    def __init__(self, mended, words=40, width=32):
        super().__init__()
        self.mended = mended
        self.tokens, self.project = nn.Embedding(words, width), nn.Linear(12, width)
        self.layers = nn.ModuleList(GemmaLayer(width) for _ in range(2))
        self.norm = nn.RMSNorm(width, eps=1e-6)

    def build_mask(self, attention_mask, token_type_ids):
        t = attention_mask.shape[1]
        low = torch.finfo(torch.float32).min
        mask = torch.full((t, t), low).triu(1)[None, None].expand(len(attention_mask), 1, t, t)
        prefix, padding = token_type_ids[:, None, None] == 0, attention_mask[:, None, None] == 0
        if self.mended:
            return mask.masked_fill(prefix, 0.0).masked_fill(padding, low)
        return mask.masked_fill(padding, low).masked_fill(prefix, 0.0)

    def forward(self, input_ids, patches, attention_mask, token_type_ids):
        x = self.tokens(input_ids)
        here = (input_ids == self.picture)[..., None].expand_as(x)
        x = x.masked_scatter(here, self.project(patches))
        places = (attention_mask.cumsum(-1) - 1).clamp(min=0).float()
        mask = self.build_mask(attention_mask, token_type_ids)
        for layer in self.layers:
            x = layer(x, mask, places)
        return self.norm(x) @ self.tokens.weight.T


def build(mended):
    torch.manual_seed(0)
    return PictureGemma(mended).eval()


def asks():
    torch.manual_seed(1)
    ids = torch.tensor([[1, 1, 7, 12, 9, 20, 31, 5], [0, 0, 0, 1, 1, 8, 17, 26]])
    mask = (ids != 0).long()
    kinds = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1, 1]])
    seen = (it.causal() | it.prefix(torch.tensor([5, 6]))) & it.padding(mask.bool())
    return dict(inputs=dict(input_ids=ids, patches=torch.randn(2, 2, 12), attention_mask=mask, token_type_ids=kinds), mask=seen)


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = asks()["inputs"]
    one = {k: (v[1:, 3:] if k != "patches" else v[1:]) for k, v in x.items()}
    return not torch.allclose(wrong()(**x)[1:, 3:], wrong()(**one), atol=1e-3) and torch.allclose(right()(**x)[1:, 3:], right()(**one), atol=1e-4)
