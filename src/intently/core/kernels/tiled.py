"""Attention in tiles: keys stream past each block of queries.

Each tile is a softmax of its own, and tiles are averaged by their log-sum-exp. O(t) memory for
every score, mask, bias, sink, softcap and dropout, forward and backward. Blocks that the mask
leaves empty are never visited. It is one operator of `torch.library`: one node in a compiled graph.

Source: Milakov & Gimelshein 2018, section 3.1 (softmaxes of parts joined); Dao 2023,
"FlashAttention-2", algorithms 1 and 2 (the tiles and their gradients).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from intently.core.kernels import eager
from intently.core.kernels.eager import Dropping, drawn
from intently.core.kernels.gradients import gradients
from intently.core.kernels.operands import batched, forward_mode, recording, transformed
from intently.core.kernels.problem import Kernel, Problem, taken
from intently.core.kernels.walk import TILE, Rows, walk
from intently.foundation.values import freeze, thaw


class Tiled(Kernel):
    """y = weights @ v in tiles of about half a million weights; O(t) memory."""

    name = "tiled"
    note = (
        "first derivatives in O(t) memory, second derivatives build the t × s matrix; torch.compile"
    )

    def refuses(self, problem: Problem, v: Tensor) -> str | None:
        """Derivatives that an operator of `torch.library` cannot give."""
        if recording():
            return "a trace or an ONNX export records PyTorch's own operations only"
        if transformed():
            return "torch.func needs operations it knows, as the plain formula has"
        values = (problem.score, problem.mask, problem.bias)
        foreign = [x for x in values if x is not None and not x.remade()]
        if foreign:
            return f"the parts of {type(foreign[0]).__name__} do not make it again"
        if forward_mode((*problem.tensors(), v)):
            return "it has no forward-mode derivative"
        return None

    def yields(self, problem: Problem, v: Tensor) -> str | None:
        """A small matrix is faster to build at once."""
        if torch.compiler.is_exporting():  # lengths may change
            return None
        return "the matrix is small" if math.prod(problem.geometry.shape) <= TILE // 4 else None

    def memory(self, problem: Problem, v: Tensor) -> int:
        """Bytes beside the inputs: the result, its lse, and three tiles at work."""
        rows = math.prod(problem.geometry.shape[:-1])
        size = torch.finfo(problem.compute_dtype).bits // 8
        tiles = 3 * min(problem.matrix_bytes(), TILE * size)
        return rows * (v.shape[-1] * problem.q.element_size() + size) + tiles

    def multiply(self, problem: Problem, v: Tensor) -> Tensor:
        """Y (…, h, t, e) in the dtype of q."""
        own = v.ndim - 2 - len(problem.geometry.lead)
        if own <= 0:
            return product(problem.shared_by(v), v)[0]
        first, last = tuple(range(own)), tuple(range(-1 - own, -1))
        wide = v.movedim(first, last)  # the same weights as for a wider v
        y = self.multiply(problem, wide.flatten(-1 - own))
        return y.unflatten(-1, wide.shape[-1 - own :]).movedim(last, first)


def product(problem: Problem, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return y (…, h, t, e) and the lse (…, h, t) in the compute dtype, both differentiable."""
    return _tiled(*arguments(problem, v))


def arguments(p: Problem, v: Tensor) -> tuple[Any, ...]:
    """The arguments of an operator that computes a product."""
    form, held = freeze(p.score, p.mask, p.bias)
    scale, number = (p.scale, 1.0) if isinstance(p.scale, Tensor) else (None, float(p.scale))
    numbers = list(drawn(p)) if p.dropout else []
    lead, softcap = list(p.geometry.lead), p.softcap or 0.0
    return p.q, p.k, v, p.sinks, scale, numbers, held, form, lead, number, softcap, p.dropout


ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor? scale, Tensor[] numbers, "
    "Tensor[] held, str form, SymInt[] lead, float number, float softcap, float dropout"
)
"""Their schema."""


@torch.library.custom_op(
    "intently::tiled", mutates_args=(), schema=f"({ARGUMENTS}) -> (Tensor, Tensor)"
)
def _tiled(*operands: Any) -> tuple[Tensor, Tensor]:
    p, v, dropping = again(*operands)
    k, v = p.without_unseen(p.k, v)
    p = p.replaced(k=k)
    y, lse = _results(p, v)
    for cut, blocks in walk(p):
        piece, values = p.part(cut), p.part_of_keys(v, cut)
        keep = dropping and dropping.part(cut)
        for block in blocks:
            rows = (*cut, slice(block.start, block.stop))
            y[rows], lse[rows] = _rows(piece, values, keep, block)
    return y, lse


@_tiled.register_fake
def _(*operands: Any) -> tuple[Tensor, Tensor]:
    p, v, _ = again(*operands)
    return _results(p, v)


def again(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    scale: Tensor | None,
    numbers: list[Tensor],
    held: list[Tensor],
    form: str,
    lead: list[int],
    number: float,
    softcap: float,
    dropout: float,
) -> tuple[Problem, Tensor, Dropping | None]:
    """Make the problem again from the arguments of an operator."""
    score, mask, bias = cast(tuple[Any, Any, Any], thaw(form, held))
    rate: Any = number if scale is None else scale
    problem = Problem(q, k, score, mask, bias, rate, softcap or None, sinks, dropout, tuple(lead))
    return problem, v, Dropping(numbers[0], numbers[1], dropout) if numbers else None


def _results(p: Problem, v: Tensor) -> tuple[Tensor, Tensor]:
    *lead, t, _ = p.geometry.shape
    return p.q.new_empty((*lead, t, v.shape[-1])), p.q.new_empty((*lead, t), dtype=p.compute_dtype)


def _rows(p: Problem, v: Tensor, dropping: Dropping | None, block: Rows) -> tuple[Tensor, Tensor]:
    """Y (…, rows, e) and lse (…, rows) of one block of rows.

    Each tile gives the softmax of its own columns, whose largest weight determines the tile's lse;
    the tiles are then averaged with weights exp lse.
    """
    rows = slice(block.start, block.stop)
    shape = (*p.geometry.lead, block.stop - block.start)
    lse = p.q.new_full((*shape, 1), -math.inf, dtype=p.compute_dtype)
    if p.sinks is not None:
        lse = p.sinks.to(lse.dtype)[..., None, None].expand(lse.shape)
    y = lse.new_zeros((*shape, v.shape[-1]))
    for run in block.runs:
        cols = slice(run.start, run.stop)
        w, mine = p.tile_softmax(p.logits(rows, cols), rows, cols, run.full)
        if dropping is not None:
            w *= dropping.factors(rows, cols, w.dtype)
        part = w @ p.per_query_head(taken(v, cols).to(w.dtype))
        both = torch.logaddexp(lse, mine)
        base = both.masked_fill(both.isneginf(), 0)
        y = y.mul_((lse - base).exp_()).add_(part.mul_((mine - base).exp_()))
        lse = both
    return y, lse[..., 0]


@torch.library.custom_op(
    "intently::tiled_backward",
    mutates_args=(),
    schema=f"(Tensor dy, Tensor dlse, Tensor y, Tensor lse, bool[] needs, {ARGUMENTS}) -> Tensor[]",
)
def _tiled_backward(
    dy: Tensor, dlse: Tensor, y: Tensor, lse: Tensor, needs: list[bool], *operands: Any
) -> list[Tensor]:
    p, v, dropping = again(*[detached(x) for x in operands])
    learned = any(needs[3 if p.sinks is None else 4 :])
    found = gradients(p, v, dropping, (y, lse), (dy, dlse), learned)
    triples = zip(found, inputs_of(operands), needs)
    wanted = [(x, like) for x, like, wanted in triples if wanted and x is not None]
    return [x.to(like.dtype).contiguous() for x, like in wanted]


@_tiled_backward.register_fake
def _(
    dy: Tensor, dlse: Tensor, y: Tensor, lse: Tensor, needs: list[bool], *operands: Any
) -> list[Tensor]:
    return [x.new_empty(x.shape) for x, wanted in zip(inputs_of(operands), needs) if wanted]


def inputs_of(operands: tuple[Any, ...]) -> list[Tensor]:
    """The tensors that may need a gradient, in the order of `gradients`."""
    q, k, v, sinks, scale, _, held, *_ = operands
    return [q, k, v, *(x for x in (sinks, scale) if x is not None), *held]


def with_inputs(operands: tuple[Any, ...], inputs: list[Tensor]) -> tuple[Any, ...]:
    """The arguments of an operator with other tensors, in the order of `inputs_of`."""
    _, _, _, sinks, scale, numbers, _, *rest = operands
    q, k, v, *left = inputs
    optional = [None if x is None else left.pop(0) for x in (sinks, scale)]
    return (q, k, v, *optional, numbers, left, *rest)


def detached(x: Any) -> Any:
    """An argument without its graph."""
    if isinstance(x, list):
        return [detached(y) for y in x]
    return x.detach() if isinstance(x, Tensor) else x


def remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Save what an operator with these arguments was given, and its two results."""
    q, k, v, sinks, scale, numbers, held, *rest = inputs
    ctx.save_for_backward(q, k, v, sinks, scale, *output, *numbers, *held)
    ctx.counts, ctx.rest = (len(numbers), len(held)), rest


def remembered(ctx: Any) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """Both results and the arguments."""
    q, k, v, sinks, scale, y, second, *lists = ctx.saved_tensors
    numbers, held = lists[: ctx.counts[0]], lists[ctx.counts[0] :]
    return y, second, (q, k, v, sinks, scale, numbers, held, *ctx.rest)


def in_place(
    operands: tuple[Any, ...], needs: list[bool], found: Iterator[Tensor]
) -> tuple[Any, ...]:
    """Gradients of the inputs that need one, each in the place of its argument."""
    _, _, _, sinks, scale, numbers, _, *rest = operands
    each = iter([next(found) if wanted else None for wanted in needs])
    first = [next(each) for _ in range(3)]
    optional = [None if x is None else next(each) for x in (sinks, scale)]
    others = [[] if x == [] else None for x in rest]
    return (*first, *optional, [None] * len(numbers), list(each), *others)


def _derivatives(ctx: Any, dy: Tensor, dlse: Tensor) -> tuple[Any, ...]:
    y, lse, operands = remembered(ctx)
    needs = [x.requires_grad for x in inputs_of(operands)]
    if torch.is_grad_enabled() or batched(dy):
        found = twice(operands, (dy, dlse))
    else:
        found = _tiled_backward(dy, dlse, y, lse, needs, *operands)
    return in_place(operands, needs, iter(found))


def twice(operands: tuple[Any, ...], given: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Gradients that can be differentiated once more, by the plain formula."""
    fresh: list[Tensor] = []

    def alias(x: Any) -> Any:
        if isinstance(x, list):
            return [alias(y) for y in x]
        if not isinstance(x, Tensor) or not x.requires_grad:
            return x
        fresh.append(x.view_as(x))  # operands may depend on one another, or be the same
        return fresh[-1]

    again_wanted = torch.is_grad_enabled()
    with torch.enable_grad():
        p, v, dropping = again(*[alias(x) for x in operands])
        results = eager.product(p, v, dropping), eager.lse(p)
    options: dict[str, Any] = {"create_graph": again_wanted, "materialize_grads": True}
    return torch.autograd.grad(results, fresh, given, allow_unused=True, **options)


torch.library.register_autograd("intently::tiled", _derivatives, setup_context=remember)
