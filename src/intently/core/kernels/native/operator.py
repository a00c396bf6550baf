"""`A @ v` by the native kernel: forward, backward, and the operator of compiled graphs.

The forward pass leaves the maximum and the sum of every row, (…, t, 2); the backward pass makes the
weights again from them, block by block.

Source: Dao 2023, "FlashAttention-2", algorithms 1 and 2.
"""

from __future__ import annotations

import importlib
import math
import os
from types import ModuleType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from intently.core.biases import Bias, TensorBias
from intently.core.kernels import eager
from intently.core.kernels.eager import Dropping, drawn
from intently.core.kernels.gradients import differentiable
from intently.core.kernels.modes import batched, needs_gradients, opaque
from intently.core.kernels.native import describing
from intently.core.kernels.problem import Problem
from intently.core.kernels.tiled import (
    ARGUMENTS,
    again,
    arguments,
    in_place,
    inputs_of,
    remember,
    remembered,
    twice,
    with_inputs,
)
from intently.core.masks import Mask
from intently.core.scores import DOT
from intently.foundation import process


class Loaded(NamedTuple):
    """The module, or the reason why there is none."""

    module: ModuleType | None
    reason: str | None


def _load() -> Loaded:
    if os.environ.get("INTENTLY_NATIVE") == "off":
        return Loaded(None, "INTENTLY_NATIVE=off is set")
    try:
        module = importlib.import_module("intently.core.kernels.native._native")
    except ModuleNotFoundError:
        return Loaded(None, "it was not built: no C++ compiler was found, or it failed")
    except ImportError as error:
        return Loaded(None, f"it does not load: {error}")
    if process.is_fork:  # of a process that may have used PyTorch's threads
        module.forked()
    return Loaded(module, None)


loaded = _load()
"""Read when the package is imported; ``INTENTLY_NATIVE`` names an instruction set, or ``off``."""


def library() -> Any:
    """Return the module; only called where `loaded` has one."""
    assert loaded.module is not None
    return loaded.module


def instructions() -> str | None:
    """Return the instruction set in use, such as ``"avx512"``; None without the module."""
    return None if loaded.module is None else library().instructions()


PRODUCT, BACKWARD, BIAS_BACKWARD, MEASURE, RECEIVE, PICTURE, HEADS = 0, 2, 3, 4, 5, 6, 7
"""The jobs of the compiled module."""

SHARES = 8
"""Tasks into which the backward pass is cut at least, where there are rows for them."""

ROWS = 64
"""Queries in one block."""


class Operands(NamedTuple):
    """What the kernel reads, each tensor with two axes after the leading ones."""

    q: Tensor
    k: Tensor
    v: Tensor
    sinks: Tensor | None
    scale: Tensor | float
    biases: list[Tensor]
    profiles: list[Tensor]
    rule: Mask | None
    mask: tuple[describing.Step, ...]
    """The program of the rule."""
    softcap: float
    lead: tuple[int, ...]
    groups: int
    dropping: Dropping | None

    @property
    def t(self) -> int:
        """The number of queries."""
        return self.q.shape[-2]

    @property
    def s(self) -> int:
        """The number of keys."""
        return self.k.shape[-2]

    def run(self, job: int, **others: Any) -> None:
        """Run one job of the compiled module on these operands and others.

        Here pointers are taken, so a view that only promises its numbers (negative, all zeros)
        becomes numbers.
        """
        given: dict[str, Any] = {
            "q": self.q,
            "k": self.k,
            "t": self.t,
            "s": self.s,
            "d": self.q.shape[-1],
            "softcap": self.softcap,
            **others,
        }
        if self.mask:
            given["mask"] = self.mask
        if self.biases:
            given["biases"] = tuple(self.biases)
        if self.profiles:
            given["profiles"] = tuple(self.profiles)
        if isinstance(self.scale, Tensor):
            given["scales"] = self.scale
        else:
            given["scale"] = self.scale
        if self.sinks is not None:
            given["sinks"] = self.sinks
        if self.dropping is not None and "v" in others:
            given["rate"] = self.dropping.rate
            given["drop_rows"], given["drop_cols"] = self.dropping.rows, self.dropping.cols
        for name, x in given.items():
            if isinstance(x, tuple) or (
                isinstance(x, Tensor) and (x.is_neg() or x._is_zerotensor())
            ):
                given[name] = _written(x)
        library().run(job, torch.get_num_threads(), self.lead, self.groups, given)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Memory to write to, whatever PyTorch's default dtype and device are."""
        return self.q.new_empty(shape, dtype=dtype)

    def tensors(self) -> list[Tensor]:
        """Those that may need a gradient, in the order of `gradients`."""
        found = [self.q, self.k, self.v]
        for x in (self.sinks, self.scale):
            if isinstance(x, Tensor):
                found.append(x)
        return [*found, *self.biases, *self.profiles]

    def read_by_mask(self) -> list[Tensor]:
        """The tensors that the mask holds, and those that its program reads."""
        program = [x for step in self.mask for x in step if isinstance(x, Tensor)]
        return [*program, *(() if self.rule is None else self.rule.tensors())]

    def replaced_by(self, tensors: list[Tensor]) -> Operands:
        """Return the same operands with other tensors, in the order of `tensors`."""
        q, k, v, *rest = tensors
        sinks = rest.pop(0) if self.sinks is not None else None
        scale = rest.pop(0) if isinstance(self.scale, Tensor) else self.scale
        n = len(self.biases)
        return self._replace(
            q=q, k=k, v=v, sinks=sinks, scale=scale, biases=rest[:n], profiles=rest[n:]
        )


def _written(x: Any) -> Any:
    """A tensor, or a tuple of them, whose memory holds its numbers."""
    if isinstance(x, tuple):
        found = []
        for part in x:
            found.append(_written(part) if isinstance(part, (tuple, Tensor)) else part)
        return tuple(found)
    if isinstance(x, Tensor) and (x.is_neg() or x._is_zerotensor()):
        return x.resolve_neg().clone()
    return x


def operands(p: Problem, v: Tensor, dropping: Dropping | None) -> Operands:
    """Describe a product for the kernel; differentiable in everything that the problem holds."""
    lead = p.geometry.lead
    k, groups = p.k, shared_heads(p, v)
    if groups != p.groups and p.groups > 1:
        k = p.per_query_head(k)  # values of their own for every query head
    if p.compute_dtype != p.q.dtype and p.geometry.t >= ROWS:  # read by many blocks of queries
        k, v = k.float(), v.float()
    tensors, profiles = describing.biases(p) if p.bias is not None else ([], [])
    sinks = p.sinks
    if sinks is not None:
        sinks = sinks[..., None, None] if sinks.ndim else sinks.reshape(1, 1)
    scale = p.scale
    if isinstance(scale, Tensor):
        scale = scale.reshape((1,) * max(0, 2 - scale.ndim) + tuple(scale.shape))
    return Operands(
        q=p.q,
        k=k,
        v=v,
        sinks=sinks,
        scale=scale,
        biases=tensors,
        profiles=profiles,
        rule=p.mask,
        mask=describing.program(p.mask, p.geometry),
        softcap=p.softcap or 0.0,
        lead=lead,
        groups=groups,
        dropping=dropping,
    )


def results(o: Operands) -> tuple[Tensor, Tensor]:
    """Empty y (…, t, e) and stats (…, t, 2), in float32."""
    return o.empty(*o.lead, o.t, o.v.shape[-1]), o.empty(*o.lead, o.t, 2)


def shared_heads(p: Problem, v: Tensor) -> int:
    """How many query heads share the same key and value head."""
    lead = p.geometry.lead
    mine, own = p.k.shape[-3:-2], v.shape[-3:-2]
    if len(lead) < 1 or mine != own or not mine or lead[-1] % mine[0]:
        return 1
    return lead[-1] // mine[0]


def forward(o: Operands, y: Tensor, stats: Tensor | None = None) -> None:
    """Write y (…, t, e), and the maximum and sum of every row, stats (…, t, 2)."""
    o.run(PRODUCT, v=o.v, y=y, stats=stats, e=o.v.shape[-1])


def gradients(
    o: Operands, y: Tensor, stats: Tensor, dy: Tensor, needs: list[bool]
) -> list[Tensor | None]:
    """Gradients of `Operands.tensors`, None for those that need none; y in float32."""
    d, e, step = o.q.shape[-1], o.v.shape[-1], library().lanes()
    heads = (*o.lead[:-1], o.lead[-1] // o.groups) if o.lead else ()
    tasks, blocks = max(1, math.prod(heads)), -(-o.t // ROWS)
    parts = max(1, min(-(-SHARES // tasks), blocks))
    dq = o.empty(*o.lead, o.t, d)
    wide = -(-d // step) * step, -(-e // step) * step
    dk, dv = (o.empty(parts, *heads, o.s, n).zero_() for n in wide)
    given: dict[str, Any] = {"v": o.v, "e": e, "y": y, "stats": stats, "dy": dy}
    o.run(BACKWARD, **given, dq=dq, dk=dk, dv=dv, parts=parts)
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
        o.run(BIAS_BACKWARD, **given, dbias=total, dbias_profile=is_profile)
        found.append(total.to(x.dtype))
    return found


def _of_sinks(o: Operands, y: Tensor, stats: Tensor, dy: Tensor) -> Tensor:
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


class _Product(torch.autograd.Function):
    """The product with its gradients; the tensors come as `Operands.tensors` orders them."""

    @staticmethod
    def forward(ctx: Any, o: Operands, *tensors: Tensor) -> Tensor:
        """Y (…, t, e) in the dtype of q."""
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


def _scale_is_zero(o: Operands) -> bool:
    """Whether a learned scale is 0, which its gradient is divided by."""
    learned = isinstance(o.scale, Tensor) and o.scale.requires_grad
    return learned and bool((cast(Tensor, o.scale) == 0).any())


def _by_formula(o: Operands, dy: Tensor, needs: list[bool]) -> list[Tensor | None]:
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


def _plain(o: Operands) -> Tensor:
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
        return cast(Tensor, _Product.apply(o, *tensors))
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
    *lead, t, _ = p.geometry.shape
    return p.q.new_empty((*lead, t, v.shape[-1]), dtype=torch.float32), p.q.new_empty(
        (*lead, t, 2), dtype=torch.float32
    )


@torch.library.custom_op(
    "intently::native_backward",
    mutates_args=(),
    schema=f"(Tensor dy, Tensor y, Tensor stats, bool[] needs, {ARGUMENTS}) -> Tensor[]",
)
def _native_backward(
    dy: Tensor, y: Tensor, stats: Tensor, needs: list[bool], *given: Any
) -> list[Tensor]:
    inputs = inputs_of(given)
    with differentiable():
        leaves = [x.detach().requires_grad_(n) for x, n in zip(inputs, needs)]
        o = operands(*again(*with_inputs(given, leaves)))
        made = o.tensors()
    wanted = [x.requires_grad for x in made]
    if _scale_is_zero(o):
        with differentiable(), torch.enable_grad():
            found = _by_formula(o, dy, wanted)
    else:
        o = o.replaced_by([x.detach() for x in made])
        found = gradients(o, y, stats, dy, wanted)
    outputs = [(x, dx) for x, dx in zip(made, found) if x.requires_grad and dx is not None]
    with differentiable():
        back = torch.autograd.grad(
            [x for x, _ in outputs],
            [x for x in leaves if x.requires_grad],
            [dx for _, dx in outputs],
            allow_unused=True,
            materialize_grads=True,
        )
    return [dx.contiguous() for dx in back]


@_native_backward.register_fake
def _(dy: Tensor, y: Tensor, stats: Tensor, needs: list[bool], *given: Any) -> list[Tensor]:
    return [x.new_empty(x.shape) for x, wanted in zip(inputs_of(given), needs) if wanted]


def _derivatives(ctx: Any, dy: Tensor, _: Tensor) -> tuple[Any, ...]:
    y, stats, given = remembered(ctx)
    needs = [x.requires_grad for x in inputs_of(given)]
    if torch.is_grad_enabled() or batched(dy):
        found = twice(given, (dy.to(given[0].dtype), torch.zeros_like(stats[..., 0])))
    else:
        found = _native_backward(dy, y, stats, needs, *given)
    return in_place(given, needs, iter(found))


torch.library.register_autograd("intently::native", _derivatives, setup_context=remember)
