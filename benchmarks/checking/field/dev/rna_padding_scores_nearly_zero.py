"""An RNA encoder with a bias of pairs fills scores of padded bases with -1e-9, which is zero, where -1e9 was meant. Source: github.com/Shujun-He/RibonanzaNet/issues/5"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["mask-too-weak", "padding-attended", "mask-other", "mask-missing"]
words = "scores of padding are set to -1e-9, which hides nothing"


class PairBiasedAttention(nn.Module):
    hidden_score = -1e-9

    def __init__(self, d_model, heads, pair):
        super().__init__()
        self.heads, self.d_k = heads, d_model // heads
        self.w_qs, self.w_ks, self.w_vs = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))
        self.pair_norm, self.pair_to_heads = nn.LayerNorm(pair), nn.Linear(pair, heads, bias=False)

    def forward(self, x, pairs, real):
        b, n, c = x.shape
        q, k, v = (f(x).view(b, n, self.heads, self.d_k).transpose(1, 2) for f in (self.w_qs, self.w_ks, self.w_vs))
        scores = q @ k.transpose(2, 3) / self.d_k ** 0.5
        scores = scores + self.pair_to_heads(self.pair_norm(pairs)).permute(0, 3, 1, 2)
        scores = scores.masked_fill(~real[:, None, None, :], self.hidden_score)
        return (F.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(b, n, c)


class MendedAttention(PairBiasedAttention):
    hidden_score = -1e9


class Layer(nn.Module):
    def __init__(self, attention, d_model, heads, pair):
        super().__init__()
        self.attention = attention(d_model, heads, pair)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.transition = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.ReLU(), nn.Linear(4 * d_model, d_model))
        self.down = nn.Linear(d_model, 4)
        self.up = nn.Linear(16, pair)

    def forward(self, x, pairs, real):
        x = self.norm1(x + self.attention(x, pairs, real))
        x = self.norm2(x + self.transition(x))
        small = self.down(x)
        outer = torch.einsum("bic,bjd->bijcd", small, small).flatten(3)
        return x, pairs + self.up(outer)


class RNAEncoder(nn.Module):
    def __init__(self, attention, d_model=32, heads=4, pair=12, depth=2, reach=6):
        super().__init__()
        self.reach = reach
        self.bases = nn.Embedding(5, d_model, padding_idx=4)
        self.distances = nn.Embedding(2 * reach + 1, pair)
        self.layers = nn.ModuleList(Layer(attention, d_model, heads, pair) for _ in range(depth))
        self.reactivity = nn.Linear(d_model, 2)

    def forward(self, src, src_mask):
        at = torch.arange(src.shape[1], device=src.device)
        apart = (at[:, None] - at[None]).clamp(-self.reach, self.reach) + self.reach
        x, pairs = self.bases(src), self.distances(apart).expand(src.shape[0], -1, -1, -1)
        for layer in self.layers:
            x, pairs = layer(x, pairs, src_mask)
        return self.reactivity(x)


def asks():
    import intently as it
    src = torch.randint(0, 4, (2, 8))
    src[1, 5:] = 4
    real = torch.arange(8)[None] < torch.tensor([[8], [5]])
    return dict(inputs=dict(src=src, src_mask=real), mask=it.padding([8, 5]))


def _make(attention):
    torch.manual_seed(0)
    return RNAEncoder(attention).eval()


def wrong():
    return _make(PairBiasedAttention)


def right():
    return _make(MendedAttention)


def proof():
    x = asks()["inputs"]
    short = dict(src=x["src"][1:, :5], src_mask=x["src_mask"][1:, :5])
    bad, good = wrong(), right()
    return (torch.allclose(good(**x)[1, :5], good(**short)[0], atol=1e-5)
            and not torch.allclose(bad(**x)[1, :5], bad(**short)[0], atol=1e-4))
