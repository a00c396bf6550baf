"""Attention in the ways that people write it by hand, each in a few lines of its own.

`STYLES` maps a name to a function of queries, keys and values (b, h, t, d), or to a module of its
own that takes (b, t, 32). They are written for this benchmark; the names say whose style it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, einsum, nn
from torch.nn import functional as F

from benchmarks.breadth import axes, forms, repositories, vision

WIDTH, HEADS = 32, 4
NEGATIVE = -1e9


def past(q: Tensor) -> Tensor:
    """True where a query may look: at itself and before."""
    return torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()


def annotated_transformer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores divided by √d, masked with −10⁹."""
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    weights = scores.masked_fill(past(q) == 0, NEGATIVE).softmax(dim=-1)
    return torch.matmul(weights, v)


def mingpt(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores times 1/√d, masked with −∞."""
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    return F.softmax(att.masked_fill(~past(q), float("-inf")), dim=-1) @ v


def lucidrains(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scaled queries and two einsums."""
    sim = einsum("b h i d, b h j d -> b h i j", q * q.shape[-1] ** -0.5, k)
    sim = sim - sim.amax(dim=-1, keepdim=True)
    return einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v)


def einops_folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads folded into the batch."""
    b = q.shape[0]
    q, k, v = (rearrange(x, "b h t d -> (b h) t d") for x in (q, k, v))
    weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1]), -1)
    return rearrange(torch.bmm(weights, v), "(b h) t d -> b h t d", b=b)


def keys_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The scores transposed: keys are rows, the softmax is over the last axis but one."""
    weights = (k @ q.mT / math.sqrt(q.shape[-1])).softmax(-2)
    return (v.mT @ weights).mT


def baddbmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A bias and the scores in one call, as in BLOOM."""
    b, h, t, d = q.shape
    bias = torch.linspace(-1, 0, t).expand(b * h, t, t)
    scores = torch.baddbmm(bias, q.reshape(b * h, t, d), k.reshape(b * h, t, d).mT, alpha=d**-0.5)
    return torch.bmm(scores.softmax(-1), v.reshape(b * h, t, d)).view(b, h, t, d)


def softmax_in_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The softmax in float32 whatever the model has, then cast back."""
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v


def mask_multiplied(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores times the mask, minus 10⁴ where it is 0, as in the first GPT."""
    allowed = past(q).to(q.dtype)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return (scores * allowed + -1e4 * (1 - allowed)).softmax(-1) @ v


def clamped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Masked scores held above the smallest number, as in XGLM."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores = scores + torch.zeros_like(scores).masked_fill(~past(q), NEGATIVE)
    return torch.max(scores, torch.tensor(-1e8)).softmax(-1) @ v


def biases_added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Content and position scores are added before the scale, as in Transformer-XL."""
    places = torch.randn(q.shape[-2], q.shape[-1], generator=torch.Generator().manual_seed(0))
    scores = q @ k.mT + q @ places.mT
    scores = scores / math.sqrt(q.shape[-1])
    return scores.masked_fill(~past(q), NEGATIVE).softmax(-1) @ v


def concatenated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores of global keys before those of all, the weights sliced again."""
    scores = torch.cat([q @ k[..., :2, :].mT, q @ k.mT], -1) / math.sqrt(q.shape[-1])
    weights = scores.softmax(-1)
    return weights[..., :2] @ v[..., :2, :] + weights[..., 2:] @ v


def sink_column(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One more score for no key at all, dropped after the softmax, as in GPT-OSS."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    weights = torch.cat([scores, torch.ones_like(scores[..., :1])], -1).softmax(-1)
    return weights[..., :-1] @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores through tanh."""
    scores = 5.0 * torch.tanh(q @ k.mT / math.sqrt(q.shape[-1]) / 5.0)
    return scores.masked_fill(~past(q), -torch.inf).softmax(-1) @ v


def exp_and_sum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The softmax written out."""
    e = torch.exp(q @ k.mT / math.sqrt(q.shape[-1]))
    return (e / e.sum(-1, keepdim=True)) @ v


def log_softmax_exp(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Log weights first."""
    return F.log_softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1).exp() @ v


def weighted_sum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Values weighted entry by entry, then summed."""
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return (weights.unsqueeze(-1) * v.unsqueeze(-3)).sum(-2)


def broadcast_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores as sums of products."""
    scores = (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1) / math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ v


def cosine(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries and keys of length 1, as in Swin v2."""
    scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * 10.0
    return scores.softmax(-1) @ v


def additive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Bahdanau's score."""
    return torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3)).sum(-1).softmax(-1) @ v


def distances(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Minus squared distances as scores."""
    return (-torch.cdist(q, k).square()).softmax(-1) @ v


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Two heads of keys for four of queries, repeated."""
    k, v = (x[:, ::2].repeat_interleave(2, dim=1) for x in (k, v))
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def grouped_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Two heads of keys for four of queries, with an axis of their own."""
    q = rearrange(q, "b (g r) t d -> b g r t d", g=2)
    scores = einsum("bgrtd,bgsd->bgrts", q, k[:, ::2]) / math.sqrt(q.shape[-1])
    out = einsum("bgrts,bgsd->bgrtd", scores.softmax(-1), v[:, ::2])
    return rearrange(out, "b g r t d -> b (g r) t d")


def in_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries and keys of the same block only."""
    q, k, v = (x.unflatten(-2, (-1, 4)) for x in (q, k, v))
    return ((q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v).flatten(-3, -2)


def talking_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Weights mixed between heads."""
    mix = torch.eye(HEADS) * 0.7 + 0.075
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return einsum("bhts,hg->bgts", weights, mix) @ v


def top_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The three largest scores only."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    least = scores.topk(3, -1).values[..., -1:]
    return scores.masked_fill(scores < least, -torch.inf).softmax(-1) @ v


def row_by_row(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One query at a time."""
    rows = [(x.unsqueeze(-2) @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v for x in q.unbind(-2)]
    return torch.cat(rows, -2)


def in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The scale and the mask written into the scores."""
    scores = q @ k.mT
    scores /= math.sqrt(q.shape[-1])
    scores.masked_fill_(~past(q), -torch.inf)
    return scores.softmax(-1) @ v


def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Dropout after the softmax, off in evaluation."""
    return F.dropout((q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1), 0.1, training=False) @ v


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's function."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def fused_operator(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The operator itself."""
    return torch.ops.aten.scaled_dot_product_attention(q, k, v)


def flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """FlexAttention, called directly."""
    from torch.nn.attention.flex_attention import flex_attention

    out = flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score - (i - j).abs())
    assert isinstance(out, Tensor)
    return out


class Attends(nn.Module):
    """Projections around a function that attends."""

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = rearrange(self.qkv(x), "b t (n h d) -> n b h t d", n=3, h=HEADS)
        return self.out(rearrange(self.function(q, k, v), "b h t d -> b t (h d)"))


class InBlocks(Attends):
    """A softmax that never exists as a whole: what it is, for `truth`."""

    def declared_weights(self, x: Tensor) -> Tensor:
        """The weights (b, h, t, t)."""
        q, k, _ = rearrange(self.qkv(x), "b t (n h d) -> n b h t d", n=3, h=HEADS)
        return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)


class SoftmaxModule(nn.Module):
    """`nn.Softmax` as a part of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.to_qkv, self.attend = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (rearrange(y, "b n (h d) -> b h n d", h=HEADS)
                   for y in self.to_qkv(x).chunk(3, dim=-1))  # fmt: skip
        weights = self.attend(torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5)
        return rearrange(torch.matmul(weights, v), "b h n d -> b n (h d)")


class Pooling(nn.Module):
    """One learned score for each position, and the weighted mean."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (self.score(x).softmax(dim=1) * x).sum(dim=1)


class Recurrent(nn.Module):
    """Luong's attention of a decoder's states to an encoder's, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.cell, self.general = nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        keys, state = self.encoder(x)
        state, outputs = state[0], []
        for step in range(3):
            state = self.cell(x[:, step], state)
            scores = torch.bmm(self.general(keys), state.unsqueeze(2)).squeeze(2)
            weights = F.softmax(scores, dim=1)
            outputs.append(torch.bmm(weights.unsqueeze(1), keys).squeeze(1) + state)
        return torch.stack(outputs, 1)


class Cached(nn.Module):
    """A cache grown by hand: three calls, each with one query more."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        outputs, keys, values = [], [], []
        for token in x.unbind(1):
            q, k, v = self.qkv(token).view(-1, 3, HEADS, WIDTH // HEADS).unbind(1)
            keys.append(k)
            values.append(v)
            scores = einsum("bhd,bhsd->bhs", q, torch.stack(keys, 2)) / math.sqrt(q.shape[-1])
            outputs.append(einsum("bhs,bhsd->bhd", scores.softmax(-1), torch.stack(values, 2)))
        return torch.stack(outputs, 1).flatten(2)


FUNCTIONS: tuple[Callable[..., Tensor], ...] = (
    annotated_transformer, mingpt, lucidrains, einops_folded, keys_first, baddbmm,
    softmax_in_float32, mask_multiplied, clamped, biases_added, concatenated, sink_column, capped,
    exp_and_sum, log_softmax_exp, weighted_sum, broadcast_scores, cosine, additive, distances,
    grouped, grouped_einsum, in_blocks, talking_heads, top_keys, row_by_row, in_place, dropped,
    fused, fused_operator, flex,
)  # fmt: skip
STYLES: dict[str, Callable[[], nn.Module]] = {
    **{
        f.__name__: (lambda f=f: Attends(f))
        for f in (*FUNCTIONS, *forms.FUNCTIONS, *axes.FUNCTIONS)
    },
    **{name: (lambda f=f: Attends(f)) for name, f in forms.REACHED.items()},
    **{f.__name__: (lambda f=f: InBlocks(f)) for f in forms.IN_BLOCKS},
    **{kind.__name__: kind for kind in (*repositories.MODULES, *vision.MODULES)},
    "softmax_module": SoftmaxModule,
    "pooling": Pooling,
    "luong_recurrent": Recurrent,
    "cached_by_hand": Cached,
}


def build(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a style, two layers where its output allows, and its input."""
    x = torch.randn(2, 8, WIDTH, generator=torch.Generator().manual_seed(1))
    first = STYLES[name]()
    with torch.no_grad():
        more = [STYLES[name]()] if first(x).shape == x.shape else []
    return nn.Sequential(first, *more), {"input": x}
