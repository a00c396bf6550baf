"""FlexAttention: PyTorch's generator of fused CUDA kernels, fed with our masks and biases.

PyTorch compiles ``score_mod`` and ``mask_mod``, two functions of single entries, into its kernel.
Masks and biases have such a form (``at``); the sizes t and s are passed as tensors, so that a new
length needs no new kernel. The blocks to skip come from ``Mask.blocks`` in closed form:
create_block_mask, the usual way, evaluates every entry of the t × s matrix. The blocks are cached
with the mask, as PyTorch advises, because layers share them.

Sinks are not scores: FlexAttention leaves them out, and each result is scaled by
sigmoid(lse − sink) = Σ exp z / (Σ exp z + exp sink) afterwards.

Tested on a GPU by tests/gpu, elsewhere through the uncompiled reference path.

Source: Dong et al. 2024, "Flex Attention: A Programming Model for Generating Optimized Attention
Kernels", sections 3 and 4.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import product as product_of
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from intently.core.kernels.problem import Kernel, Problem, four_axes
from intently.core.masks import FULL, PARTIAL, Geometry, Mask
from intently.core.masks.geometry import MaskRule
from intently.core.scores import Dot
from intently.foundation.values import Value, freeze, thaw

BLOCK = 128
"""Queries and keys of a block that is skipped or visited: FlexAttention's own default."""

LEAST_WIDTH = 16
"""The narrowest heads that its kernels multiply."""

KERNELS = 256
"""Number of compiled kernels (kinds of mask, bias and shape) before PyTorch gives up."""

HALVES = (torch.float16, torch.bfloat16)

Attend = Callable[..., Any]
"""flex_attention, compiled or not."""


class Flex(Kernel):
    """y = flex_attention(q, k, v) with our masks, biases, softcap and sinks, on CUDA.

    The first call of each kind of mask and bias compiles a kernel, which takes seconds.
    """

    name = "flex"
    note = "first derivatives of q, k, v and sinks; compiles on first use"
    device = "cuda"

    def refuses(self, problem: Problem, v: Tensor) -> str | None:
        p = problem
        if p.q.device.type != "cuda":
            return "FlexAttention runs on CUDA here; tiled serves the CPU"
        return unserved(p, v)

    def yields(self, problem: Problem, v: Tensor) -> str | None:
        """With few queries, as in decoding, any other kernel is faster than launching this one."""
        return f"t={problem.geometry.t} is below {BLOCK}" if problem.geometry.t < BLOCK else None

    def memory(self, problem: Problem, v: Tensor) -> int:
        g = problem.geometry
        rows = math.prod(g.shape[:-1])
        blocks = 0 if problem.mask is None else -(-g.t // BLOCK) * -(-g.s // BLOCK)
        rule = 1 if problem.mask is None or not problem.mask.lead() else math.prod(g.lead[:-1])
        return rows * (v.shape[-1] * problem.q.element_size() + 4) + 16 * blocks * rule

    def multiply(self, problem: Problem, v: Tensor) -> Tensor:
        with _room_for_kernels():
            return product(problem, v, compiled())


def _options(p: Problem) -> dict[str, Any]:
    """Kernel options, each of which avoids a failure seen on an H100.

    Its kernel for few queries cannot be compiled for some lengths. Where tiles of a bias are read
    beside those of k and v, tiles of the usual size do not fit into shared memory.
    """
    options: dict[str, Any] = {"FORCE_USE_FLEX_ATTENTION": True}
    if p.bias is not None and any(x.ndim > 1 for x in p.bias.tensors()):
        options |= {"BLOCK_M": 64, "BLOCK_N": 64}
    return options


def unserved(p: Problem, v: Tensor) -> str | None:
    """Why FlexAttention cannot serve this call on its own device; None where it can."""
    if torch.compiler.is_compiling():
        return "a graph is being compiled around the call"
    if type(p.score) is not Dot:
        return f"score is {type(p.score).__name__}, not the dot product"
    if p.dropout:
        return "dropout is set"
    if isinstance(p.scale, Tensor):
        return "scale is a tensor"
    if p.q.dtype not in (*HALVES, torch.float32):
        return f"dtype is {p.q.dtype}"
    if not (p.q.numel() and p.k.numel() and v.numel()):
        return "a dimension is empty"
    if min(p.q.shape[-1], v.shape[-1]) < LEAST_WIDTH:
        return f"d={p.q.shape[-1]} or e={v.shape[-1]} is below {LEAST_WIDTH}"
    lead, own = p.geometry.lead, v.shape[:-2]
    if len(own) > len(lead) or any(a > b for a, b in zip(own[::-1], lead[::-1])):
        return "v has leading axes that the matrix does not have"
    h, g = _heads(p, v)
    if (h // g) & (h // g - 1):
        return f"h={h} is not g={g} times a power of two"
    for name, value in (("mask", p.mask), ("bias", p.bias)):
        if value is not None and not _at_known(value):
            return f"{name} has no form for single entries, the method `at`"
    learned = p.bias is not None and any(x.requires_grad for x in p.bias.tensors())
    if learned and torch.is_grad_enabled():
        return "bias needs a gradient, which FlexAttention adds up in no fixed order"
    return None


def _at_known(value: Value) -> bool:
    """Whether the value and its inner values have the form for single entries (``at``)."""
    inner = all(_at_known(part) for part in value.parts if isinstance(part, Value))
    return inner and getattr(type(value), "at", MaskRule.at) is not MaskRule.at


def product(p: Problem, v: Tensor, attend: Attend) -> Tensor:
    """Y (…, t, e) = weights @ v by ``attend``, which is flex_attention, compiled or not."""
    from torch.nn.attention.flex_attention import AuxRequest

    g, (h, shared) = p.geometry, _heads(p, v)
    q = four_axes(p.q, g, h)
    k, v = (four_axes(x, g, shared) for x in p.without_unseen(p.k, v))
    y = attend(
        q,
        k,
        v,
        score_mod(p),
        block_mask(p),
        scale=float(p.scale),
        enable_gqa=h != shared,
        kernel_options=_options(p),
        return_aux=None if p.sinks is None else AuxRequest(lse=True),
    )
    if p.sinks is not None:
        y, aux = y
        sinks = p.sinks if p.sinks.ndim < 2 else p.sinks.expand(g.lead).reshape(-1, h)
        y = y * kept(aux.lse, sinks).to(y.dtype)[..., None]
    return y.reshape(*g.lead, g.t, v.shape[-1])


def kept(lse: Tensor, sinks: Tensor) -> Tensor:
    """Weight that keys keep beside the sink: lse (b, h, t) without it; sinks (), (h,) or (b, h)."""
    return torch.sigmoid(lse - sinks.to(lse.dtype)[..., None])


def score_mod(p: Problem) -> Callable[..., Tensor] | None:
    """Softcap and bias as a function of a score and its position; None without either."""
    if p.softcap is None and p.bias is None:
        return None
    g, softcap = _sized(p.geometry), p.softcap
    bias = None if p.bias is None else p.bias.replaced(lambda x: x.detach().to(g.device))

    def modified(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if bias is not None:
            score = score + bias.at(g, leading(g.lead, b, h), i, j).to(score.dtype)
        return score

    return modified


def mask_mod(mask: Mask, geometry: Geometry) -> Callable[..., Tensor]:
    """Return the mask as a function of the position of an entry."""
    g, rule = _sized(geometry), mask.replaced(lambda x: x.to(geometry.device))

    def allowed(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return rule.at(g, leading(g.lead, b, h), i, j)

    return allowed


def leading(lead: tuple[int, ...], b: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    """Indices of the leading axes; FlexAttention has two, so all but the last are flattened.

    >>> leading((2, 3, 4), torch.tensor(5), torch.tensor(1))
    (tensor(1), tensor(2), tensor(1))
    """
    if not lead:
        return ()
    found = [h]
    for size in reversed(lead[1:-1]):
        found.insert(0, b % size)
        b = b // size
    return (b, *found) if len(lead) > 1 else (h,)


def block_mask(p: Problem) -> Any:
    """Return FlexAttention's BlockMask: the blocks of the mask and its rule; None without one."""
    if p.mask is None:
        return None
    found = copy.copy(_blocks_of(p.mask, p.geometry))
    found.mask_mod = mask_mod(p.mask, p.geometry)
    return found


_known: WeakKeyDictionary[Mask, tuple[object, Any]] = WeakKeyDictionary()


def _blocks_of(mask: Mask, g: Geometry) -> Any:
    """Cached lists of blocks: by mask while it lives, by its written form if it has no tensors."""
    tensors = mask.tensors()
    if not tensors:
        return _blocks_as_written(freeze(mask)[0], g)
    if any(x.is_inference() for x in tensors):
        return _list_blocks(mask, g)
    key = (g, tuple(x._version for x in tensors))
    if mask not in _known or _known[mask][0] != key:
        _known[mask] = (key, _list_blocks(mask, g))
    return _known[mask][1]


@lru_cache(maxsize=64)
def _blocks_as_written(form: str, g: Geometry) -> Any:
    (mask,) = thaw(form, [])
    assert isinstance(mask, Mask)
    return _list_blocks(mask, g)


def _list_blocks(mask: Mask, g: Geometry) -> Any:
    """Lists of partial and full blocks; one per batch row if the mask differs between rows.

    A block that hangs over the edge is never full, as in create_block_mask.
    """
    from torch.nn.attention.flex_attention import BlockMask

    found = torch.stack([part.blocks(h, BLOCK, BLOCK) for part, h in _batch_rows(mask, g)])
    if g.t % BLOCK:
        found[:, -1] = found[:, -1].clamp(max=PARTIAL)
    if g.s % BLOCK:
        found[..., -1] = found[..., -1].clamp(max=PARTIAL)
    lists = [x for state in (PARTIAL, FULL) for x in _listed(found[:, None] == state)]
    return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=BLOCK, seq_lengths=(g.t, g.s))


def _batch_rows(mask: Mask, g: Geometry) -> Iterator[tuple[Mask, Geometry]]:
    if len(g.lead) < 2 or not mask.lead():
        yield mask, g
        return
    for b in product_of(*map(range, g.lead[:-1])):
        cut = (*(slice(i, i + 1) for i in b), slice(None))
        yield mask.part(cut, g), g._replace(lead=(*(1,) * len(b), g.lead[-1]))


def _listed(some: Tensor) -> tuple[Tensor, Tensor]:
    """The number of blocks (b, 1, rows) in each row of blocks, and their indices, these first."""
    order = torch.argsort(some.to(torch.int8), dim=-1, descending=True, stable=True)
    return some.sum(-1).to(torch.int32), order.to(torch.int32)


def _sized(g: Geometry) -> Geometry:
    """Return the geometry with t and s as tensors, which a compiled graph takes as inputs."""
    t, s = (torch.full((), n, device=g.device) for n in (g.t, g.s))
    return g._replace(t=t, s=s)


def _heads(p: Problem, v: Tensor) -> tuple[int, int]:
    """Query heads, and the heads that k and v have in common."""
    h = p.geometry.lead[-1] if p.geometry.lead else 1
    return h, max(x.shape[-3] if x.ndim > 2 else 1 for x in (p.k, v))


@lru_cache(maxsize=1)
def compiled() -> Attend:
    """Return FlexAttention, compiled into one graph for each kind of call."""
    from torch.nn.attention.flex_attention import flex_attention

    def attend(*args: Any, **options: Any) -> Any:  # PyTorch counts compilations by function
        return flex_attention(*args, **options)

    return torch.compile(attend, fullgraph=True)


@contextmanager
def _room_for_kernels() -> Iterator[None]:
    """Let PyTorch compile every kind of call; past its limit of eight it would build the matrix.

    Numbers are constants of a kind: a softcap or scale that became a variable would not compile.
    """
    from torch._dynamo import config

    limits = {"recompile_limit": KERNELS, "accumulated_recompile_limit": 4 * KERNELS}
    with config.patch({**limits, "specialize_float": True}):
        yield
