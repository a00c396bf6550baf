"""The decoder layer of a textbook passes is_causal to cross-attention and not to self-attention. Source: github.com/onlybooks/llm/issues/4"""
import torch
import torch.nn.functional as F
from torch import nn

expect = ["cross-causal", "mask-missing"]
words = "tokens see the tokens after them, and only as many source tokens as stand before their own place"


def asks():
    return dict(inputs=dict(tgt=torch.randn(2, 5, 32), encoder_output=torch.randn(2, 8, 32), is_causal=True))


class MultiheadAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.concat = (nn.Linear(width, width) for _ in range(4))

    def forward(self, querys, keys, values, is_causal=False):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for f, x in ((self.q, querys), (self.k, keys), (self.v, values)))
        return self.concat(F.scaled_dot_product_attention(q, k, v, is_causal=is_causal).transpose(1, 2).flatten(2))


class DecoderLayer(nn.Module):
    def __init__(self, width, heads, inner, causal_within):
        super().__init__()
        self.causal_within = causal_within
        self.within, self.across = MultiheadAttention(width, heads), MultiheadAttention(width, heads)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.feed = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, tgt, encoder_output, is_causal=True):
        within, across = (is_causal, False) if self.causal_within else (False, is_causal)
        x = self.norms[0](tgt)
        x = x + self.within(x, x, x, is_causal=within)
        x = self.norms[1](x)
        x = x + self.across(x, encoder_output, encoder_output, is_causal=across)
        return x + self.feed(self.norms[2](x))


def make(causal_within):
    torch.manual_seed(11)
    return DecoderLayer(32, 4, 48, causal_within).eval()


def wrong():
    return make(False)


def right():
    return make(True)


def proof():
    call = asks()["inputs"]
    later = dict(call, tgt=torch.cat((call["tgt"][:, :-1], torch.randn(2, 1, 32)), 1))
    source = dict(call, encoder_output=torch.cat((call["encoder_output"][:, :-1], torch.randn(2, 1, 32)), 1))
    leak = [(m(**call) - m(**later))[:, 0].abs().max().item() for m in (wrong(), right())]
    reads = [(m(**call) - m(**source))[:, 0].abs().max().item() for m in (wrong(), right())]
    return leak[0] > 1e-3 and leak[1] < 1e-5 and reads[0] < 1e-2 and reads[1] > 1e-3
