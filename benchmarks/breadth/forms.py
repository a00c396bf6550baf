"""More forms of attention by hand: how weights are made, and by which way the code reaches them.

Functions of queries, keys and values (b, h, t, d), as in `styles`, written for this
benchmark.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import einops
import opt_einsum
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import softmax as plainly_named
from torch.utils.checkpoint import checkpoint

Function = Callable[[Tensor, Tensor, Tensor], Tensor]


def scores(q: Tensor, k: Tensor) -> Tensor:
    """Scaled products."""
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def past(q: Tensor) -> Tensor:
    """True where a query may look: at itself and before."""
    return torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()


# --- exponentials -------------------------------------------------------------------------------


def divided_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Values are mixed by exponentials, and divided by their sum afterwards."""
    s = scores(q, k)
    p = (s - s.max(-1, keepdim=True).values).exp()
    return (p @ v) / p.sum(-1, keepdim=True)


def divided_last_masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same with a mask that is multiplied in, and a reciprocal."""
    p = torch.exp(scores(q, k)) * past(q)
    return torch.matmul(p, v) * p.sum(-1, keepdim=True).reciprocal()


def powers_of_two(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Exp2 of scores times log₂ e, as in kernels."""
    s = scores(q, k) * math.log2(math.e)
    p = torch.exp2(s - s.amax(-1, keepdim=True))
    return (p @ v) / p.sum(-1, keepdim=True)


def powers_of_two_divided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Exp2, divided before the product."""
    p = torch.exp2(scores(q, k) * 1.4426950408889634)
    return (p / p.sum(-1, keepdim=True)) @ v


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


def query_chunks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Blocks of queries, each with all keys."""
    parts = [scores(x, k).softmax(-1) @ v for x in q.chunk(2, -2)]
    return torch.cat(parts, -2)


def log_normalised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Exp of scores less their logsumexp, as in Reformer."""
    s = scores(q, k)
    return torch.exp(s - torch.logsumexp(s, -1, keepdim=True)) @ v


def exp_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Everything in place."""
    s = scores(q, k)
    s.sub_(s.amax(-1, keepdim=True)).exp_()
    s.div_(s.sum(-1, keepdim=True))
    return s @ v


def exp_normalised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`F.normalize` by the 1-norm divides."""
    return F.normalize(scores(q, k).exp(), p=1.0, dim=-1) @ v


def exp_with_epsilon(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A small number in the divisor."""
    p = scores(q, k).exp() * past(q)
    return torch.einsum("bhij,bhjd->bhid", p / (p.sum(-1, keepdim=True) + 1e-9), v)


def log_softmax_and_exp(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The functions by name, masked first."""
    logs = torch.log_softmax(scores(q, k).masked_fill(~past(q), -1e9), dim=-1)
    return torch.exp(logs) @ v


def softmax_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One more in the divisor: a query may attend to nothing."""
    p = scores(q, k).exp()
    return (p / (1 + p.sum(-1, keepdim=True))) @ v


def masked_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The softmax first, then a mask, then a sum that divides again."""
    w = scores(q, k).softmax(-1) * past(q)
    return (w / w.sum(-1, keepdim=True)) @ v


# --- names of the softmax -----------------------------------------------------------------------


def special(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`torch.special.softmax`."""
    return torch.special.softmax(scores(q, k), -1) @ v


def named(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`from torch.nn.functional import softmax as …`."""
    return plainly_named(scores(q, k), -1) @ v


def operator(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`torch.ops.aten._softmax`."""
    return torch.ops.aten._softmax(scores(q, k), -1, False) @ v


def masked_module(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`torch.masked.softmax`."""
    return torch.masked.softmax(scores(q, k), -1, mask=past(q).expand(*q.shape[:-1], -1)) @ v


def float64(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores cast up, weights cast down."""
    return scores(q, k).double().softmax(-1).to(v.dtype) @ v


def gumbel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Weights with Gumbel noise."""
    return F.gumbel_softmax(scores(q, k), tau=0.5, dim=-1) @ v


def sparse(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A sparse matrix of scores, one head at a time."""
    made = []
    for x, y, z in zip(*(a.flatten(0, 1) for a in (q, k, v))):
        s = scores(x, y).masked_fill(~past(q), 0).to_sparse()
        made.append(torch.sparse.mm(torch.sparse.softmax(s, 1), z))
    return torch.stack(made).view_as(q)


softmaxes: dict[str, nn.Module] = {"rows": nn.Softmax(dim=-1)}


def module_in_dict(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`nn.Softmax` in a dict of the file."""
    return torch.matmul(softmaxes["rows"](scores(q, k)), v)


# --- ways to reach the code ---------------------------------------------------------------------


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The plain formula."""
    s = scores(q, k) if mask is None else scores(q, k).masked_fill(~mask, -torch.inf)
    return s.softmax(-1) @ v


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Exp and sum, without a softmax that could be heard of."""
    e = scores(q, k).exp()
    return (e / e.sum(dim=-1, keepdim=True)) @ v


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


def in_autograd_function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`torch.autograd.Function`."""
    out: Any = Differentiated.apply(q, k, v)  # type: ignore[no-untyped-call]
    return out


def by_vmap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`torch.vmap` over heads and batch."""
    return torch.vmap(torch.vmap(plain))(q, k, v)


def by_checkpoint(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`torch.utils.checkpoint`."""
    out: Any = checkpoint(written_out, q, k, v, use_reentrant=False)
    return out


def by_einops(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`einops.einsum` with names."""
    s = einops.einsum(q, k, "b h i d, b h j d -> b h i j") * q.shape[-1] ** -0.5
    return einops.einsum(s.softmax(-1), v, "b h i j, b h j d -> b h i d")


def by_opt_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`opt_einsum.contract`."""
    s = opt_einsum.contract("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    return opt_einsum.contract("bhij,bhjd->bhid", torch.softmax(s, dim=-1), v)


def by_tensordot(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One head at a time by `tensordot`."""
    made = []
    for x, y, z in zip(*(a.flatten(0, 1) for a in (q, k, v))):
        made.append(torch.tensordot(torch.tensordot(x, y, dims=([1], [1])).softmax(1), z, 1))
    return torch.stack(made).view_as(q)


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


FUNCTIONS: tuple[Function, ...] = (
    divided_last, divided_last_masked, powers_of_two, powers_of_two_divided, query_chunks,
    log_normalised, exp_in_place, exp_normalised, exp_with_epsilon, log_softmax_and_exp,
    softmax_one, masked_after, special, named, operator, masked_module, float64, gumbel, sparse,
    module_in_dict, written_out, in_autograd_function, by_vmap, by_checkpoint, by_einops,
    by_opt_einsum, by_tensordot, pytorchs_function,
)  # fmt: skip
IN_BLOCKS: tuple[Function, ...] = (online, online_normalised, tiled)
REACHED: dict[str, Function] = {
    "in_closure": closed(written_out),
    "in_lambda": lambda q, k, v: written_out(q, k, v),
    "in_partial": partial(plain, mask=torch.ones(8, 8, dtype=torch.bool).tril()),
    "in_object": Helper(0.3),
}
"""The same formula behind a closure, a lambda, a partial and an object."""
