"""A captioning model's expand_mask turns ones of the attention mask, which mean real tokens, into the lowest number, so padding alone is attended to. Source: github.com/OFA-Sys/OFA/pull/214"""
import torch
import torch.nn as nn

expect = ["mask-inverted"]
words = "real keys are hidden and padding is seen"


def expand_mask(mask, dtype, tgt=None, inverted=True):
    b, s = mask.shape
    wide = mask[:, None, None].expand(b, 1, tgt or s, s).to(dtype)
    hide = wide.bool() if inverted else ~wide.bool()
    return torch.zeros_like(wide).masked_fill(hide, torch.finfo(dtype).min)


class OFAAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))
        self.c_attn = nn.Parameter(torch.ones(heads))

    def forward(self, x, memory, mask):
        b, t, c = x.shape
        q, k, v = (f(a).view(b, -1, self.heads, c // self.heads).transpose(1, 2) for f, a in ((self.q_proj, x), (self.k_proj, memory), (self.v_proj, memory)))
        w = (q * (c // self.heads) ** -0.5 @ k.transpose(2, 3) + mask).softmax(-1)
        y = (w @ v) * self.c_attn[:, None, None]
        return self.out_proj(y.transpose(1, 2).reshape(b, t, c))


class Encoder(nn.Module):
    def __init__(self, inverted, words=40, width=32, heads=4, depth=2):
        super().__init__()
        self.inverted = inverted
        self.image, self.embed, self.place = nn.Linear(12, width), nn.Embedding(words, width), nn.Embedding(32, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.layers = nn.ModuleList(OFAAttention(width, heads) for _ in range(depth))

    def forward(self, patch_features, input_ids, attention_mask):
        x = torch.cat((self.image(patch_features), self.embed(input_ids) + self.place(torch.arange(input_ids.shape[1]))), 1)
        mask = torch.cat((attention_mask.new_ones(patch_features.shape[:2]), attention_mask), 1)
        mask = expand_mask(mask, x.dtype, inverted=self.inverted)
        for norm, layer in zip(self.norms, self.layers):
            n = norm(x)
            x = x + layer(n, n, mask)
        return x


def build(inverted):
    torch.manual_seed(0)
    return Encoder(inverted).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])
    return dict(inputs=dict(patch_features=torch.randn(2, 3, 12), input_ids=torch.randint(0, 40, (2, 5)), attention_mask=mask), mask=it.padding([7, 5]))


def wrong():
    return build(True)


def right():
    return build(False)


def proof():
    a = asks()["inputs"]
    b = dict(a, input_ids=a["input_ids"].clone())
    b["input_ids"][:, 4] = (b["input_ids"][:, 4] + 1) % 40
    return not torch.allclose(wrong()(**a)[:, :4], wrong()(**b)[:, :4], atol=1e-4) and torch.allclose(right()(**a)[:, :4], right()(**b)[:, :4], atol=1e-6)
