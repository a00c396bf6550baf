"""A wrapper hands a left-padded batch and its attention mask to a GPT-2-like model and no positions, so texts with padding before them get shifted learned positions. Source: github.com/TransformerLensOrg/TransformerLens/issues/1609"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["left-padding-positions"]
words = "positions count the padding on the left"


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.c_attn(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.c_proj(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x, mask):
        x = x + self.attn(self.ln_1(x), mask)
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    def __init__(self, words=40, width=32, heads=4, depth=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(32, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, input_ids, attention_mask, position_ids=None):
        t = input_ids.shape[1]
        if position_ids is None:
            position_ids = torch.arange(t)[None]
        x = self.wte(input_ids) + self.wpe(position_ids)
        mask = torch.ones(t, t, dtype=torch.bool).tril()[None, None] & attention_mask[:, None, None].bool()
        mask = mask | torch.eye(t, dtype=torch.bool)
        for block in self.h:
            x = block(x, mask)
        return self.ln_f(x) @ self.wte.weight.T


class Bridge(nn.Module):
    def __init__(self, mended):
        super().__init__()
        self.mended, self.original = mended, GPT2()

    def forward(self, input_ids, attention_mask):
        places = None
        if self.mended:
            places = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        return self.original(input_ids, attention_mask, places)


def build(mended):
    torch.manual_seed(0)
    return Bridge(mended).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]])
    return dict(inputs=dict(input_ids=torch.randint(0, 40, (2, 7)), attention_mask=mask), mask=it.causal() & it.padding(mask.bool()))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = asks()["inputs"]
    alone = dict(input_ids=a["input_ids"][1:, 3:], attention_mask=torch.ones(1, 4, dtype=torch.long))
    return not torch.allclose(wrong()(**a)[1:, 3:], wrong()(**alone), atol=1e-3) and torch.allclose(right()(**a)[1:, 3:], right()(**alone), atol=1e-4)
