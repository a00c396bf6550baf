"""`A @ v` by the native kernel: forward, backward, and the operator of compiled graphs.

The forward pass leaves the maximum and the sum of every row, (…, t, 2); the backward pass makes the
weights again from them, block by block.

Source: Dao 2023, "FlashAttention-2", algorithms 1 and 2.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from intently.core.biases import Bias, TensorBias
from intently.core.kernels import eager
from intently.core.kernels.eager import Dropping, drawn
from intently.core.kernels.gradients import differentiable
from intently.core.kernels.native import describing
from intently.core.kernels.native.describing import ROWS, NativeOperands, library, operands
from intently.core.kernels.operands import batched, needs_gradients, opaque
from intently.core.kernels.problem import Problem
from intently.core.kernels.tiled import (
    ARGUMENTS,
    again,
    arguments,
    by_formula,
    in_place,
    save,
    saved,
)
from intently.core.scores import DOT

SHARES = 8
"""Tasks into which the backward pass is cut at least, where there are rows for them."""


def results(o: NativeOperands) -> tuple[Tensor, Tensor]:
    """Empty y (…, t, e) and stats (…, t, 2), in float32."""
    return o.empty(*o.lead, o.t, o.v.shape[-1]), o.empty(*o.lead, o.t, 2)


def forward(o: NativeOperands, y: Tensor, stats: Tensor | None = None) -> None:
    """Write y (…, t, e), and the maximum and sum of every row, stats (…, t, 2)."""
    o.run(describing.PRODUCT, v=o.v, y=y, stats=stats, e=o.v.shape[-1])


def gradients(
    o: NativeOperands, y: Tensor, stats: Tensor, dy: Tensor, needs: list[bool]
) -> list[Tensor | None]:
    """Gradients of `NativeOperands.tensors`, None for those that need none; y in float32."""
    d, e, step = o.q.shape[-1], o.v.shape[-1], library().lanes()
    heads = (*o.lead[:-1], o.lead[-1] // o.groups) if o.lead else ()
    tasks, blocks = max(1, math.prod(heads)), -(-o.t // ROWS)
    parts = max(1, min(-(-SHARES // tasks), blocks))
    dq = o.empty(*o.lead, o.t, d)
    wide = -(-d // step) * step, -(-e // step) * step
    dk, dv = (o.empty(parts, *heads, o.s, n).zero_() for n in wide)
    given: dict[str, Any] = {"v": o.v, "e": e, "y": y, "stats": stats, "dy": dy}
    o.run(describing.BACKWARD, **given, dq=dq, dk=dk, dv=dv, parts=parts)
    dk, dv = (x[0] if parts == 1 else x.sum(0) for x in (dk, dv))
    found: list[Tensor | None] = [_like(dq, o.q), _like(dk[..., :d], o.k), _like(dv[..., :e], o.v)]
    rest = iter(needs[3:])
    if o.sinks is not None:
        found.append(_like(_of_sinks(o, y, stats, dy), o.sinks) if next(rest) else None)
    if isinstance(o.scale, Tensor):
        own = (o.q * dq).sum((-1, -2), keepdim=True) / o.scale
        found.append(_like(own, o.scale) if next(rest) else None)
    for x, is_profile in [(b, False) for b in o.biases] + [(b, True) for b in o.profiles]:
        if not next(rest):
            found.append(None)
            continue
        total = torch.zeros_like(x, dtype=torch.float32)
        o.run(describing.BIAS_BACKWARD, **given, dbias=total, dbias_profile=is_profile)
        found.append(total.to(x.dtype))
    return found


def _of_sinks(o: NativeOperands, y: Tensor, stats: Tensor, dy: Tensor) -> Tensor:
    """−Σ over queries of D · (the weight of the sink), (…, 1, 1)."""
    offset = (dy * y).sum(-1, keepdim=True)
    assert o.sinks is not None
    weight = (o.sinks - lse(stats)[..., None]).exp()
    return -(torch.where(stats[..., 1:] == 0, 0, weight) * offset).sum(-2, keepdim=True)


def lse(stats: Tensor) -> Tensor:
    """log(Σ exp z + exp sink) of each query (…, t), from its maximum (in powers of 2) and sum."""
    top, total = stats.unbind(-1)
    return torch.where(total == 0, -math.inf, top * math.log(2) + total.log())


def _like(x: Tensor, other: Tensor) -> Tensor:
    """Sum over the axes that ``other`` shares, in its dtype."""
    x = x if x.shape == other.shape else x.sum_to_size(other.shape)
    return x.to(other.dtype)


class _NativeProduct(torch.autograd.Function):
    """The product with its gradients; the tensors come as `NativeOperands.tensors` orders them."""

    @staticmethod
    def forward(ctx: Any, o: NativeOperands, *tensors: Tensor) -> Tensor:
        y, stats = results(o)
        forward(o.replaced_by([x.detach() for x in tensors]), y, stats)
        ctx.o = o.replaced_by([y.new_empty(0)] * len(tensors))
        ctx.save_for_backward(y, stats, *tensors, *o.read_by_mask())
        return y.to(o.q.dtype) if y.dtype != o.q.dtype else y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:  # pyright: ignore
        """The gradients of the tensors."""
        needs = list(ctx.needs_input_grad[1:])
        y, stats, *saved = ctx.saved_tensors  # raises if one, the mask's included, has changed
        o = ctx.o.replaced_by(saved[: len(needs)])
        if torch.is_grad_enabled() or batched(dy) or _scale_is_zero(o):
            return None, *_by_formula(o, dy, needs)
        found = gradients(o.replaced_by([x.detach() for x in o.tensors()]), y, stats, dy, needs)
        return None, *(x if wanted else None for x, wanted in zip(found, needs))


def _scale_is_zero(o: NativeOperands) -> bool:
    """Whether a learned scale is 0, which its gradient is divided by."""
    learned = isinstance(o.scale, Tensor) and o.scale.requires_grad
    return learned and bool((cast(Tensor, o.scale) == 0).any())


def _by_formula(o: NativeOperands, dy: Tensor, needs: list[bool]) -> list[Tensor | None]:
    """Gradients by the plain formula, which can be differentiated once more."""
    twice = torch.is_grad_enabled()
    with torch.enable_grad():
        fresh = [x.view_as(x) if x.requires_grad else x for x in o.tensors()]
        if not twice:
            fresh = [x.detach().requires_grad_(wanted) for x, wanted in zip(fresh, needs)]
        y = _plain(o.replaced_by(fresh))
        wanted = [x for x, want in zip(fresh, needs) if want]
        options: dict[str, Any] = {"create_graph": twice, "materialize_grads": True}
        found = iter(torch.autograd.grad(y, wanted, dy, allow_unused=True, **options))
    return [next(found) if want else None for want in needs]


def _plain(o: NativeOperands) -> Tensor:
    """The same product with the whole matrix."""
    written = [TensorBias(x) for x in o.biases]
    i, j = (torch.arange(n, device=o.q.device) for n in (o.t, o.s))
    written += [TensorBias(x[..., 0, :][..., i[:, None] - j + o.s - 1]) for x in o.profiles]
    bias: Bias | None = None
    for part in written:
        bias = part if bias is None else bias + part
    sinks = None if o.sinks is None else o.sinks[..., 0, 0]
    p = Problem(o.q, o.k, DOT, o.rule, bias, o.scale, o.softcap or None, sinks, 0.0, o.lead)
    return eager.product(p, o.v, o.dropping)


def product(p: Problem, v: Tensor) -> Tensor:
    """Y (…, t, e) in the dtype of q, with gradients where they are wanted."""
    if opaque((*p.tensors(), v)):
        return _native(*arguments(p, v))[0].to(p.q.dtype)
    o = operands(p, v, Dropping(*drawn(p), p.dropout) if p.dropout else None)
    tensors = o.tensors()
    if torch.is_grad_enabled() and needs_gradients(tensors):
        return cast(Tensor, _NativeProduct.apply(o, *tensors))
    y = p.q.new_empty((*o.lead, p.geometry.t, v.shape[-1]))
    forward(o, y)
    return y


# --- the operator of compiled graphs --------------------------------------------------------------


@torch.library.custom_op(
    "intently::native", mutates_args=(), schema=f"({ARGUMENTS}) -> (Tensor, Tensor)"
)
def _native(*given: Any) -> tuple[Tensor, Tensor]:
    o = operands(*again(*given))
    y, stats = results(o)
    forward(o, y, stats)
    return y, stats


@_native.register_fake
def _(*given: Any) -> tuple[Tensor, Tensor]:
    p, v, _ = again(*given)
    rows = p.geometry.shape[:-1]
    y, stats = (p.q.new_empty((*rows, n), dtype=torch.float32) for n in (v.shape[-1], 2))
    return y, stats


@torch.library.custom_op(
    "intently::native_backward",
    mutates_args=(),
    schema=f"(Tensor dy, Tensor y, Tensor stats, bool[] needs, {ARGUMENTS}) -> Tensor[]",
)
def _native_backward(
    dy: Tensor, y: Tensor, stats: Tensor, needs: list[bool], *given: Any
) -> list[Tensor]:
    inputs, *others = given
    with differentiable():
        leaves = [x.detach().requires_grad_(n) for x, n in zip(inputs, needs)]
        o = operands(*again(leaves, *others))
        described = o.tensors()
    wanted = [x.requires_grad for x in described]
    if _scale_is_zero(o):
        with differentiable(), torch.enable_grad():
            found = _by_formula(o, dy, wanted)
    else:
        found = gradients(o.replaced_by([x.detach() for x in described]), y, stats, dy, wanted)
    pairs = [(x, dx) for x, dx in zip(described, found) if x.requires_grad and dx is not None]
    leaves = [x for x in leaves if x.requires_grad]
    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
    with differentiable():
        back = torch.autograd.grad(
            [x for x, _ in pairs], leaves, [dx for _, dx in pairs], **options
        )
    return [dx.contiguous() for dx in back]


@_native_backward.register_fake
def _(dy: Tensor, y: Tensor, stats: Tensor, needs: list[bool], *given: Any) -> list[Tensor]:
    return [x.new_empty(x.shape) for x, wanted in zip(given[0], needs) if wanted]


def _derivatives(ctx: Any, dy: Tensor, _: Tensor) -> tuple[Any, ...]:
    y, stats, given = saved(ctx)
    inputs = given[0]
    if torch.is_grad_enabled() or batched(dy):
        own = dy.to(inputs[0].dtype), torch.zeros_like(stats[..., 0])
        return in_place(given, by_formula(given, own))
    needs = [x.requires_grad for x in inputs]
    return in_place(given, _native_backward(dy, y, stats, needs, *given))


torch.library.register_autograd("intently::native", _derivatives, setup_context=save)
