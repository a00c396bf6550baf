"""A wrapper batches prompts with padding on the left and calls its GPT with a mask but without positions, which then count the padding. Source: github.com/ndif-team/nnsight/issues/672"""
import intently as it
import torch
import torch.nn as nn

expect = ["left-padding-positions"]
words = "learned positions of a short prompt start behind its padding"


class PromptHeads(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, allowed):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        weights = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(-1)
        weights = weights.masked_fill(~allowed, 0.0)                # padding itself sees nothing
        return self.c_proj((weights @ v).transpose(1, 2).reshape(b, t, c))


class PromptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = PromptHeads(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x, allowed):
        x = x + self.attn(self.ln_1(x), allowed)
        return x + self.mlp(self.ln_2(x))


class PromptGPT(nn.Module):
    def __init__(self, words=50, width=32, heads=4, depth=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(32, width)
        self.h = nn.ModuleList(PromptBlock(width, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, input_ids, attention_mask, position_ids=None):
        t = input_ids.shape[1]
        if position_ids is None:
            position_ids = torch.arange(t)[None]
        past = torch.ones(t, t, dtype=torch.bool).tril()
        allowed = past & attention_mask.bool()[:, None, None, :]
        x = self.wte(input_ids) + self.wpe(position_ids)
        for block in self.h:
            x = block(x, allowed)
        return self.ln_f(x) @ self.wte.weight.T


class Probe(nn.Module):
    def __init__(self, mended):
        super().__init__()
        self.mended = mended
        self.model = PromptGPT()

    def forward(self, input_ids, attention_mask):
        if not self.mended:
            return self.model(input_ids, attention_mask)
        places = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        return self.model(input_ids, attention_mask, position_ids=places)


def build(mended):
    torch.manual_seed(0)
    return Probe(mended).eval()


def asks():
    torch.manual_seed(1)
    ids = torch.randint(1, 50, (2, 8))
    mask = torch.ones(2, 8, dtype=torch.long)
    ids[1, :3] = 0
    mask[1, :3] = 0
    return dict(inputs=dict(input_ids=ids, attention_mask=mask), mask=it.causal() & it.padding(mask.bool()))


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    x = asks()["inputs"]
    one = dict(input_ids=x["input_ids"][1:, 3:], attention_mask=x["attention_mask"][1:, 3:])
    off = (wrong()(**x)[1, 3:] - wrong()(**one)[0]).abs().max() > 1e-3
    return bool(off) and torch.allclose(right()(**x)[1, 3:], right()(**one)[0], atol=1e-5)
