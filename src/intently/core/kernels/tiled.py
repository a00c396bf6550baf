"""Attention in tiles: keys stream past each block of queries.

Each tile is a softmax of its own, and tiles are averaged by their log-sum-exp. O(t) memory for
every score, mask, bias, sink, softcap and dropout, forward and backward. Blocks that the mask
leaves empty are never visited. It is one operator of `torch.library`: one node in a compiled graph.

Source: Milakov & Gimelshein 2018, section 3.1 (softmaxes of parts joined); Dao 2023,
"FlashAttention-2", algorithms 1 and 2 (the tiles and their gradients).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor

from intently.core.kernels import eager
from intently.core.kernels.eager import Dropping, drawn
from intently.core.kernels.gradients import gradients
from intently.core.kernels.operands import batched, forward_mode, recording, transformed
from intently.core.kernels.problem import Kernel, Problem, taken
from intently.core.kernels.walk import TILE, RowBlock, walk
from intently.foundation.values import freeze, thaw


class TiledKernel(Kernel):
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
        rows = math.prod(problem.geometry.shape[:-1])
        size = torch.finfo(problem.compute_dtype).bits // 8
        tiles = 3 * min(problem.matrix_bytes(), TILE * size)
        return rows * (v.shape[-1] * problem.q.element_size() + size) + tiles

    def multiply(self, problem: Problem, v: Tensor) -> Tensor:
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
    """The arguments of an operator that computes a product; first what may need a gradient."""
    form, held = freeze(p.score, p.mask, p.bias)
    inputs = [p.q, p.k, v, *(x for x in (p.sinks, p.scale) if isinstance(x, Tensor)), *held]
    numbers = list(drawn(p)) if p.dropout else []
    scale = None if isinstance(p.scale, Tensor) else float(p.scale)
    lead, softcap, sunk = list(p.geometry.lead), p.softcap or 0.0, p.sinks is not None
    return inputs, numbers, form, lead, sunk, scale, softcap, p.dropout


ARGUMENTS = (
    "Tensor[] inputs, Tensor[] numbers, str form, SymInt[] lead, bool sunk, float? scale, "
    "float softcap, float dropout"
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
    inputs: list[Tensor], numbers: list[Tensor], form: str, lead: list[int], *options: Any
) -> tuple[Problem, Tensor, Dropping | None]:
    """Make the problem again from the arguments of an operator."""
    sunk, scale, softcap, dropout = options
    q, k, v, *rest = inputs
    sinks = rest.pop(0) if sunk else None
    scale = rest.pop(0) if scale is None else scale
    score, mask, bias = cast(tuple[Any, Any, Any], thaw(form, rest))
    problem = Problem(q, k, score, mask, bias, scale, softcap or None, sinks, dropout, tuple(lead))
    return problem, v, Dropping(numbers[0], numbers[1], dropout) if numbers else None


def _results(p: Problem, v: Tensor) -> tuple[Tensor, Tensor]:
    *lead, t, _ = p.geometry.shape
    return p.q.new_empty((*lead, t, v.shape[-1])), p.q.new_empty((*lead, t), dtype=p.compute_dtype)


def _rows(
    p: Problem, v: Tensor, dropping: Dropping | None, block: RowBlock
) -> tuple[Tensor, Tensor]:
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
    inputs, *others = operands
    p, v, dropping = again([x.detach() for x in inputs], *others)
    learned = any(needs[3 if p.sinks is None else 4 :])
    totals = gradients(p, v, dropping, (y, lse), (dy, dlse), learned)
    return [
        x.to(like.dtype).contiguous()
        for x, like, wanted in zip(totals, inputs, needs)
        if wanted and x is not None
    ]


@_tiled_backward.register_fake
def _(
    dy: Tensor, dlse: Tensor, y: Tensor, lse: Tensor, needs: list[bool], *operands: Any
) -> list[Tensor]:
    return [x.new_empty(x.shape) for x, wanted in zip(operands[0], needs) if wanted]


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Save what an operator with these arguments was given, and its two results."""
    tensors, numbers, *ctx.others = inputs
    ctx.save_for_backward(*output, *tensors, *numbers)
    ctx.count = len(tensors)


def saved(ctx: Any) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """Both results and the arguments."""
    y, second, *tensors = ctx.saved_tensors
    return y, second, (tensors[: ctx.count], tensors[ctx.count :], *ctx.others)


def in_place(operands: tuple[Any, ...], found: Iterable[Tensor]) -> tuple[Any, ...]:
    """Gradients of the inputs that need one, each in the place of its argument."""
    inputs, numbers, *others = operands
    each = iter(found)
    gradients = [next(each) if x.requires_grad else None for x in inputs]
    return gradients, [None] * len(numbers), *([] if x == [] else None for x in others)


def _derivatives(ctx: Any, dy: Tensor, dlse: Tensor) -> tuple[Any, ...]:
    y, lse, operands = saved(ctx)
    if torch.is_grad_enabled() or batched(dy):
        return in_place(operands, by_formula(operands, (dy, dlse)))
    needs = [x.requires_grad for x in operands[0]]
    return in_place(operands, _tiled_backward(dy, dlse, y, lse, needs, *operands))


def by_formula(operands: tuple[Any, ...], given: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Gradients by the plain formula, which can be differentiated once more."""
    inputs, *others = operands
    options: dict[str, Any] = {"create_graph": torch.is_grad_enabled(), "materialize_grads": True}
    with torch.enable_grad():
        # views, since inputs may depend on one another, or be the same
        fresh = [x.view_as(x) if x.requires_grad else x for x in inputs]
        p, v, dropping = again(fresh, *others)
        results = eager.product(p, v, dropping), eager.lse(p)
    wanted = [x for x in fresh if x.requires_grad]
    return torch.autograd.grad(results, wanted, given, allow_unused=True, **options)


torch.library.register_autograd("intently::tiled", _derivatives, setup_context=save)
