"""Functions of queries, keys and values (b, h, t, d) in the ways that people write them by hand.

They are written for this benchmark; the names say whose style it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import einops
import opt_einsum
import torch
from einops import rearrange
from torch import Tensor, einsum, nn
from torch.nn import functional as F
from torch.nn.functional import softmax as plainly_named
from torch.utils.checkpoint import checkpoint

from benchmarks.breadth.modules import HEADS, STEPS

Function = Callable[[Tensor, Tensor, Tensor], Tensor]
NEGATIVE = -1e9
MIXED = torch.eye(HEADS) * 0.7 + 0.075
"""What mixes heads."""


def past(q: Tensor) -> Tensor:
    """True where a query may look: at itself and before."""
    return torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()


def scores(q: Tensor, k: Tensor) -> Tensor:
    """Scaled products."""
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Exp and sum, without a softmax that could be heard of."""
    e = scores(q, k).exp()
    return (e / e.sum(dim=-1, keepdim=True)) @ v


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The plain formula."""
    s = scores(q, k) if mask is None else scores(q, k).masked_fill(~mask, -torch.inf)
    return s.softmax(-1) @ v


softmaxes: dict[str, nn.Module] = {"rows": nn.Softmax(dim=-1)}

FUNCTIONS: dict[str, Function] = {
    # a mask
    "annotated_transformer": lambda q, k, v: (
        scores(q, k).masked_fill(past(q) == 0, NEGATIVE).softmax(dim=-1) @ v
    ),
    "mingpt": lambda q, k, v: F.softmax(scores(q, k).masked_fill(~past(q), -torch.inf), dim=-1) @ v,
    "mask_multiplied": lambda q, k, v: (  # as in the first GPT
        (scores(q, k) * past(q) + -1e4 * (1 - past(q).to(q.dtype))).softmax(-1) @ v
    ),
    "masked_after": lambda q, k, v: (
        (e := scores(q, k).softmax(-1) * past(q)) / e.sum(-1, keepdim=True) @ v
    ),
    "top_keys": lambda q, k, v: (
        (
            scores(q, k).where(
                scores(q, k) >= scores(q, k).topk(3, -1).values[..., -1:], -torch.inf
            )
        ).softmax(-1)
        @ v
    ),
    # scores
    "capped": lambda q, k, v: (
        (5.0 * torch.tanh(scores(q, k) / 5.0)).masked_fill(~past(q), -torch.inf).softmax(-1) @ v
    ),
    "weighted_sum": lambda q, k, v: (scores(q, k).softmax(-1).unsqueeze(-1) * v.unsqueeze(-3)).sum(
        -2
    ),
    "broadcast_scores": lambda q, k, v: (
        ((q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1) / math.sqrt(q.shape[-1])).softmax(-1) @ v
    ),
    "cosine": lambda q, k, v: (  # as in Swin v2
        (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * 10.0).softmax(-1) @ v
    ),
    "additive": lambda q, k, v: (  # Bahdanau's
        torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3)).sum(-1).softmax(-1) @ v
    ),
    "distances": lambda q, k, v: (-torch.cdist(q, k).square()).softmax(-1) @ v,
    # other names of the softmax
    "softmax_in_float32": lambda q, k, v: (
        F.softmax(scores(q, k), dim=-1, dtype=torch.float32).to(q.dtype) @ v
    ),
    "log_softmax_exp": lambda q, k, v: F.log_softmax(scores(q, k), -1).exp() @ v,
    "log_softmax_and_exp": lambda q, k, v: (
        torch.exp(torch.log_softmax(scores(q, k).masked_fill(~past(q), NEGATIVE), dim=-1)) @ v
    ),
    "special": lambda q, k, v: torch.special.softmax(scores(q, k), -1) @ v,
    "named": lambda q, k, v: plainly_named(scores(q, k), -1) @ v,
    "operator": lambda q, k, v: torch.ops.aten._softmax(scores(q, k), -1, False) @ v,
    "masked_module": lambda q, k, v: (
        torch.masked.softmax(scores(q, k), -1, mask=past(q).expand(*q.shape[:-1], -1)) @ v
    ),
    "float64": lambda q, k, v: scores(q, k).double().softmax(-1).to(v.dtype) @ v,
    "gumbel": lambda q, k, v: F.gumbel_softmax(scores(q, k), tau=0.5, dim=-1) @ v,
    "module_in_dict": lambda q, k, v: torch.matmul(softmaxes["rows"](scores(q, k)), v),
    "dropped": lambda q, k, v: F.dropout(scores(q, k).softmax(-1), 0.1, training=False) @ v,
    # exponentials
    "log_normalised": lambda q, k, v: (  # as in Reformer
        torch.exp(scores(q, k) - torch.logsumexp(scores(q, k), -1, keepdim=True)) @ v
    ),
    "exp_normalised": lambda q, k, v: F.normalize(scores(q, k).exp(), p=1.0, dim=-1) @ v,
    "exp_and_sum": lambda q, k, v: (e := torch.exp(scores(q, k))) / e.sum(-1, keepdim=True) @ v,
    "exp_with_epsilon": lambda q, k, v: einsum(
        "bhij,bhjd->bhid", (e := scores(q, k).exp() * past(q)) / (e.sum(-1, keepdim=True) + 1e-9), v
    ),
    "softmax_one": lambda q, k, v: (e := scores(q, k).exp()) / (e.sum(-1, keepdim=True) + 1) @ v,
    "powers_of_two_divided": lambda q, k, v: (
        (e := torch.exp2(scores(q, k) * 1.4426950408889634)) / e.sum(-1, keepdim=True) @ v
    ),
    # heads
    "grouped": lambda q, k, v: (
        scores(q, k[:, ::2].repeat_interleave(2, dim=1)).softmax(-1)
        @ v[:, ::2].repeat_interleave(2, dim=1)
    ),
    "over_queries": lambda q, k, v: (  # slots
        (e := scores(q, k).softmax(-2) + 1e-8) / e.sum(-1, keepdim=True) @ v
    ),
    "talking_heads": lambda q, k, v: einsum("bhts,hg->bgts", scores(q, k).softmax(-1), MIXED) @ v,
    "talking_before": lambda q, k, v: einsum("bhts,hg->bgts", scores(q, k), MIXED).softmax(-1) @ v,
    "talking_both": lambda q, k, v: (  # by a convolution, as in CaiT
        F.conv2d(F.conv2d(scores(q, k), MIXED[..., None, None]).softmax(-1), MIXED[..., None, None])
        @ v
    ),
    # ways to reach the code
    "fused": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "fused_operator": lambda q, k, v: torch.ops.aten.scaled_dot_product_attention(q, k, v),
    "by_vmap": lambda q, k, v: torch.vmap(torch.vmap(plain))(q, k, v),
    "by_checkpoint": lambda q, k, v: checkpoint(written_out, q, k, v, use_reentrant=False),
    "query_chunks": lambda q, k, v: torch.cat([plain(x, k, v) for x in q.chunk(2, -2)], -2),
    "written_out": written_out,
    "in_lambda": lambda q, k, v: written_out(q, k, v),
    "in_partial": partial(plain, mask=torch.ones(STEPS, STEPS, dtype=torch.bool).tril()),
}


def style(function: Function) -> Function:
    """Add a function to `FUNCTIONS` by its name."""
    FUNCTIONS[function.__name__] = function
    return function


@style
def lucidrains(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scaled queries and two einsums."""
    sim = einsum("b h i d, b h j d -> b h i j", q * q.shape[-1] ** -0.5, k)
    sim = sim - sim.amax(dim=-1, keepdim=True)
    return einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v)


@style
def einops_folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads folded into the batch."""
    b = q.shape[0]
    q, k, v = (rearrange(x, "b h t d -> (b h) t d") for x in (q, k, v))
    weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1]), -1)
    return rearrange(torch.bmm(weights, v), "(b h) t d -> b h t d", b=b)


@style
def keys_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The scores transposed: keys are rows, the softmax is over the last axis but one."""
    weights = (k @ q.mT / math.sqrt(q.shape[-1])).softmax(-2)
    return (v.mT @ weights).mT


@style
def baddbmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A bias and the scores in one call, as in BLOOM."""
    b, h, t, d = q.shape
    bias = torch.linspace(-1, 0, t).expand(b * h, t, t)
    s = torch.baddbmm(bias, q.reshape(b * h, t, d), k.reshape(b * h, t, d).mT, alpha=d**-0.5)
    return torch.bmm(s.softmax(-1), v.reshape(b * h, t, d)).view(b, h, t, d)


@style
def clamped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Masked scores held above the smallest number, as in XGLM."""
    s = scores(q, k)
    s = s + torch.zeros_like(s).masked_fill(~past(q), NEGATIVE)
    return torch.max(s, torch.tensor(-1e8)).softmax(-1) @ v


@style
def biases_added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Content and position scores are added before the scale, as in Transformer-XL."""
    places = torch.randn(q.shape[-2], q.shape[-1], generator=torch.Generator().manual_seed(0))
    s = (q @ k.mT + q @ places.mT) / math.sqrt(q.shape[-1])
    return s.masked_fill(~past(q), NEGATIVE).softmax(-1) @ v


@style
def concatenated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores of global keys before those of all, the weights sliced again."""
    weights = torch.cat([scores(q, k[..., :2, :]), scores(q, k)], -1).softmax(-1)
    return weights[..., :2] @ v[..., :2, :] + weights[..., 2:] @ v


@style
def sink_column(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One more score for no key at all, dropped after the softmax, as in GPT-OSS."""
    s = scores(q, k)
    return torch.cat([s, torch.ones_like(s[..., :1])], -1).softmax(-1)[..., :-1] @ v


@style
def grouped_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Two heads of keys for four of queries, with an axis of their own."""
    q = rearrange(q, "b (g r) t d -> b g r t d", g=2)
    s = einsum("bgrtd,bgsd->bgrts", q, k[:, ::2]) / math.sqrt(q.shape[-1])
    out = einsum("bgrts,bgsd->bgrtd", s.softmax(-1), v[:, ::2])
    return rearrange(out, "b g r t d -> b (g r) t d")


@style
def in_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries and keys of the same block only."""
    q, k, v = (x.unflatten(-2, (-1, 4)) for x in (q, k, v))
    return (scores(q, k).softmax(-1) @ v).flatten(-3, -2)


@style
def row_by_row(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One query at a time."""
    rows = [(x.unsqueeze(-2) @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v for x in q.unbind(-2)]
    return torch.cat(rows, -2)


@style
def in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The scale and the mask written into the scores."""
    s = q @ k.mT
    s /= math.sqrt(q.shape[-1])
    s.masked_fill_(~past(q), -torch.inf)
    return s.softmax(-1) @ v


@style
def flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """FlexAttention, called directly."""
    from torch.nn.attention.flex_attention import flex_attention

    out: Any = flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score - (i - j).abs())
    return out


# --- exponentials -------------------------------------------------------------------------------


@style
def divided_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Values are mixed by exponentials, and divided by their sum afterwards."""
    s = scores(q, k)
    p = (s - s.max(-1, keepdim=True).values).exp()
    return (p @ v) / p.sum(-1, keepdim=True)


@style
def divided_last_masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same with a mask that is multiplied in, and a reciprocal."""
    p = torch.exp(scores(q, k)) * past(q)
    return torch.matmul(p, v) * p.sum(-1, keepdim=True).reciprocal()


@style
def powers_of_two(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Exp2 of scores times log₂ e, as in kernels."""
    s = scores(q, k) * math.log2(math.e)
    p = torch.exp2(s - s.amax(-1, keepdim=True))
    return (p @ v) / p.sum(-1, keepdim=True)


def online(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Blocks of keys with a running maximum and sum, as in FlashAttention-2."""
    best = torch.full_like(q[..., :1], -torch.inf)
    total, mixed = torch.zeros_like(best), torch.zeros_like(q)
    for start in range(0, k.shape[-2], 3):
        block = slice(start, start + 3)
        s = scores(q, k[..., block, :])
        new = torch.maximum(best, s.amax(-1, keepdim=True))
        p, shrink = torch.exp(s - new), torch.exp(best - new)
        total = shrink * total + p.sum(-1, keepdim=True)
        mixed = shrink * mixed + p @ v[..., block, :]
        best = new
    return mixed / total


def online_normalised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Blocks of keys, the output normalised after each, as in the first FlashAttention."""
    best = torch.full_like(q[..., :1], -torch.inf)
    total, out = torch.zeros_like(best), torch.zeros_like(q)
    for k_block, v_block in zip(k.split(4, -2), v.split(4, -2)):
        s = scores(q, k_block)
        new = torch.maximum(best, s.amax(-1, keepdim=True))
        p, shrink = torch.exp(s - new), torch.exp(best - new)
        grown = shrink * total + p.sum(-1, keepdim=True)
        out = (out * (total * shrink) + p @ v_block) / grown
        best, total = new, grown
    return out


def tiled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Blocks of queries and of keys, written into the output."""
    out = torch.empty_like(q)
    for i in range(0, q.shape[-2], 4):
        rows, mixed, total = q[..., i : i + 4, :], 0, 0
        for j in range(0, k.shape[-2], 4):
            p = scores(rows, k[..., j : j + 4, :]).exp()
            mixed = mixed + p @ v[..., j : j + 4, :]
            total = total + p.sum(-1, keepdim=True)
        out[..., i : i + 4, :] = mixed / total
    return out


@style
def exp_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Everything in place."""
    s = scores(q, k)
    s.sub_(s.amax(-1, keepdim=True)).exp_()
    s.div_(s.sum(-1, keepdim=True))
    return s @ v


# --- ways to reach the code, and products -------------------------------------------------------


def closed(function: Function) -> Function:
    """The function in a closure."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return function(q, k, v)

    return attend


class Helper:
    """An object that is no module."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend."""
        return self.mix(q * self.temperature, k) @ v

    def mix(self, q: Tensor, k: Tensor) -> Tensor:
        """Weights."""
        e = torch.exp(q @ k.mT)
        return e / e.sum(-1, keepdim=True)


FUNCTIONS |= {"in_closure": closed(written_out), "in_object": Helper(0.3)}


class Differentiated(torch.autograd.Function):
    """An autograd function with both passes written out."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend."""
        e = scores(q, k).exp()
        w = e / e.sum(-1, keepdim=True)
        ctx.save_for_backward(q, k, v, w)
        return w @ v

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Only that of v: the benchmark runs forward."""
        return None, None, ctx.saved_tensors[3].mT @ grads[0]


@style
def in_autograd_function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`torch.autograd.Function`."""
    out: Any = Differentiated.apply(q, k, v)  # type: ignore[no-untyped-call]
    return out


@style
def by_einops(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`einops.einsum` with names."""
    s = einops.einsum(q, k, "b h i d, b h j d -> b h i j") * q.shape[-1] ** -0.5
    return einops.einsum(s.softmax(-1), v, "b h i j, b h j d -> b h i d")


@style
def by_opt_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`opt_einsum.contract`."""
    s = opt_einsum.contract("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    return opt_einsum.contract("bhij,bhjd->bhid", torch.softmax(s, dim=-1), v)


def one_by_one(attend: Function) -> Function:
    """A function of one head as one of all."""
    return lambda q, k, v: torch.stack(
        [attend(*head) for head in zip(*(x.flatten(0, 1) for x in (q, k, v)))]
    ).view_as(q)


FUNCTIONS |= {
    "by_tensordot": one_by_one(
        lambda q, k, v: torch.tensordot(torch.tensordot(q, k, dims=([1], [1])).softmax(1), v, 1)
    ),
    "sparse": one_by_one(
        lambda q, k, v: torch.sparse.mm(
            torch.sparse.softmax(scores(q, k).masked_fill(~past(q), 0).to_sparse(), 1), v
        )
    ),
}


@style
def pytorchs_function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`F.multi_head_attention_forward` with projections that change nothing."""
    b, h, t, d = q.shape
    c, one = h * d, torch.eye(h * d)
    q, k, v = (x.permute(2, 0, 1, 3).reshape(t, b, c) for x in (q, k, v))
    given = {"in_proj_weight": torch.cat([one] * 3), "in_proj_bias": None, "bias_k": None}
    given |= {"bias_v": None, "add_zero_attn": False, "dropout_p": 0.0, "training": False}
    out, _ = F.multi_head_attention_forward(
        q, k, v, c, h, out_proj_weight=one, out_proj_bias=None, **given
    )  # type: ignore[arg-type]
    return out.view(t, b, h, d).permute(1, 2, 0, 3)
