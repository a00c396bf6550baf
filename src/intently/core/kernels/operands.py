"""Checks of the operands of `attend` and of products.

Also which modes of PyTorch are on: autocast, gradients, transforms, a graph being recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad

from intently.core.biases import Bias, as_bias
from intently.core.kernels.problem import Problem
from intently.core.masks import Mask, as_mask, causal, check_broadcast
from intently.core.masks.geometry import broadcasts, check_device
from intently.core.masks.mask import settled
from intently.core.scores import DOT, Score
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import Numbers, as_tensor, as_tensors, plain, valued
from intently.foundation.checks import is_number, probability


def problem_of(
    q: Tensor,
    k: Tensor,
    score: Score | None,
    mask: Mask | Tensor | Numbers | None,
    bias: Bias | Tensor | Numbers | None,
    scale: float | Tensor | Numbers | None,
    softcap: float | None,
    sinks: Tensor | Numbers | None,
    dropout: float,
) -> tuple[Problem, bool]:
    """Check the operands of `attend`; return whether autocast was on."""
    if q.ndim < 2 or k.ndim < 2:
        name, x = ("q", q) if q.ndim < 2 else ("k", k)
        raise build(ArgumentError, name, "at least two axes (…, steps, d)", shape_of(x))
    autocast = in_autocast(q.device)
    if autocast:
        to = torch.get_autocast_dtype(q.device.type)
        q, k = (x.to(to) if x.dtype is not torch.float64 else x for x in (q, k))
    if q.dtype != k.dtype or q.device != k.device:
        expected = f"dtype and device of q, {q.dtype} on {q.device}"
        fix = "convert one of them with .to(…), an array with .astype(…)"
        raise build(KindError, "k", expected, f"{k.dtype} on {k.device}", fix=fix)
    score = DOT if score is None else score
    if score is not DOT and not isinstance(score, Score):
        raise build(
            KindError, "score", "a score such as intently.core.scores.Dot()", type(score).__name__
        )
    if score is not DOT or q.shape[-1] != k.shape[-1]:
        score.check(q, k)
    lead = _leading(q, k)
    if dropout:
        probability(dropout, "dropout")
    if softcap is not None and not (is_number(softcap) and 0 < softcap < math.inf):
        raise build(ArgumentError, "softcap", "a finite number > 0, or None", repr(softcap))
    if scale is None:
        scale = score.default_scale(q.shape[-1])
    elif not isinstance(scale, (int, float)):
        scale = as_tensor(scale, "scale", q)
    elif not is_number(scale) or not math.isfinite(scale):
        expected = "a finite number, a tensor () or (…, 1, 1), or None"
        raise build(ArgumentError, "scale", expected, repr(scale))
    if type(mask).__name__ == "CausalBias":
        mask = of_causal_bias(mask, q.shape[-2], k.shape[-2])
    rule = None if mask is None else as_mask(mask, q.device)
    added = None if bias is None else as_bias(bias, q)
    sinks = None if sinks is None else as_tensor(sinks, "sinks", q)
    problem = Problem(q, k, score, rule, added, scale, softcap, sinks, dropout, lead)
    if rule is not None:
        rule.check(problem.geometry)
        if rule.parts and (plain_rule := settled(rule)) is not rule:
            problem = problem.replaced(mask=plain_rule)
    if added is not None:
        added.check(problem.geometry)
    if sinks is not None:
        check_device(sinks, "sinks", q.device)
        own = tuple(sinks.shape)
        if own not in ((), lead[-1:]) and not broadcasts(own, lead):
            raise build(ArgumentError, "sinks", f"shape () or (h,) = {lead[-1:]}", shape_of(sinks))
    if isinstance(scale, Tensor):
        check_broadcast(scale, problem.geometry._replace(t=1, s=1), "scale")
    return problem, autocast


def values_of(p: Problem, v: Tensor, autocast: bool) -> Tensor:
    """Check the values (…, g, s, e), and share them between heads like the keys, if possible."""
    if autocast and v.dtype is not torch.float64:
        v = v.to(p.q.dtype)
    check_product(p.geometry.shape, p.q.dtype, p.q.device, v)
    lead, shared = v.shape[:-2], p.k.shape[:-2]
    if lead == shared:
        return v
    if p.groups > 1 and v.ndim >= 3 and lead[-1] not in (1, p.k.shape[-3]):
        raise build(ArgumentError, "v", f"g={p.k.shape[-3]} heads like k", shape_of(v))
    try:
        if torch.broadcast_shapes(lead, shared) == shared:
            return v.expand(*shared, *v.shape[-2:])
        if p.groups > 1 and lead:
            v = v.expand(*lead[:-1], p.k.shape[-3], *v.shape[-2:])
            lead = (*lead[:-1], p.geometry.lead[-1])
        torch.broadcast_shapes(lead, p.geometry.lead)
    except RuntimeError:
        raise build(
            ArgumentError, "v", f"leading axes that broadcast with {p.geometry.lead}", shape_of(v)
        ) from None
    return v


def of_causal_bias(mask: Any, t: int, s: int) -> Mask:
    """The mask that a `torch.nn.attention.bias.CausalBias` stands for."""
    if (mask.seq_len_q, mask.seq_len_kv) != (t, s):
        got = f"a CausalBias for ({mask.seq_len_q}, {mask.seq_len_kv})"
        raise build(ArgumentError, "mask", f"a mask (t={t}, s={s})", got, fix="pass it.causal()")
    return causal() if t == s or mask.variant.name == "LOWER_RIGHT" else causal(offset=0)


_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def usual(x: Any) -> TypeGuard[Tensor]:
    """Whether x is a tensor of a dtype in which attention is computed."""
    if type(x) is Tensor:  # the rest is that of `plain`
        return x.dtype in _DTYPES and x.layout is torch.strided and not x.is_nested
    return isinstance(x, Tensor) and x.dtype in _DTYPES and plain(x)


def tensors(**operands: Any) -> tuple[Tensor, ...]:
    """`as_tensors`, in dtypes in which attention is computed."""
    found = as_tensors(**operands)
    for name, x in zip(operands, found):
        if x.dtype not in _DTYPES:
            expected = "float32, float64, bfloat16 or float16"
            raise build(KindError, name, expected, f"dtype {x.dtype}", fix="convert it with .to(…)")
    return found


def _leading(q: Tensor, k: Tensor) -> tuple[int, ...]:
    lead_q, lead_k = q.shape[:-2], k.shape[:-2]
    if lead_q == lead_k:
        return tuple(lead_q)
    if q.ndim >= 4 and k.ndim >= 3 and lead_k[-1] and lead_q[-1] % lead_k[-1] == 0:
        lead_k = (*lead_k[:-1], lead_q[-1])
        if lead_q == lead_k:
            return lead_k
    try:
        return tuple(torch.broadcast_shapes(lead_q, lead_k))
    except RuntimeError:
        expected = f"leading axes that broadcast with those of q {tuple(lead_q)}"
        cause = "heads are axis −3; with four or more axes h may be a multiple of g"
        raise build(ArgumentError, "k", expected, shape_of(k), cause) from None


def check_product(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, v: Any) -> None:
    """Raise unless v is a tensor (…, s, e) for a matrix of this shape, dtype and device."""
    if v.dtype != dtype or v.device != device:
        expected = f"dtype and device of the matrix, {dtype} on {device}"
        fix = "convert it with .to(…), an array with .astype(…); lists and integers always fit"
        raise build(KindError, "v", expected, f"{v.dtype} on {v.device}", fix=fix)
    if v.ndim < 2 or v.shape[-2] != shape[-1]:
        expected = f"shape (…, s={shape[-1]}, e)"
        raise build(ArgumentError, "v", expected, shape_of(v), "v holds one row for each key")


def transformed(but: str | None = None) -> bool:
    """Whether a `torch.func` transform is active, other than a single one called ``but``."""
    level = _functorch.maybe_current_level()
    if level is None:
        return False
    top = _functorch.peek_interpreter_stack()
    return level > 1 or top is None or top.key().name != but


setattr(transformed, "_dynamo_marked_constant", True)  # noqa: B010 - torch.compiler's own mark


def batched(gradient: Tensor) -> bool:
    """Whether a backward pass runs for many gradients at once, as in a vectorised Jacobian."""
    return transformed() or _functorch.is_legacy_batchedtensor(gradient)


def forward_mode(tensors: Iterable[Tensor]) -> bool:
    """Whether one of the tensors carries a forward-mode derivative."""
    if forward_ad._current_level < 0:
        return False
    return any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def needs_gradients(tensors: Iterable[Tensor]) -> bool:
    """Whether gradients of one of the tensors are wanted."""
    for x in tensors:  # noqa: SIM110 - a generator costs a small call a microsecond
        if x.requires_grad:
            return True
    return False


def differentiated(tensors: Iterable[Tensor]) -> bool:
    """Whether results computed from the tensors will be differentiated, are being traced, or have
    no numbers yet.
    """
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return True
    return transformed() or forward_mode(tensors) or not all(map(valued, tensors))


def recording() -> bool:
    """Whether operations are recorded to run elsewhere: `torch.jit.trace` or an ONNX export."""
    return _onnx() if torch.compiler.is_compiling() else torch._C._is_tracing()


def _onnx() -> bool:
    return torch.onnx.is_in_onnx_export()


setattr(_onnx, "_dynamo_marked_constant", True)  # noqa: B010 - torch.compiler's own mark


def opaque(tensors: Iterable[Tensor]) -> bool:
    """Whether something must see the operations themselves: a graph being compiled, a mode of
    `torch.utils._python_dispatch`, a subclass of Tensor such as a fake or a distributed one.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return True
    if torch._C._is_tracing():
        return True
    for x in tensors:
        kind = type(x)
        if kind not in _PLAIN and getattr(kind, "__torch_dispatch__", None) is not _NONE:
            return True
    return False


wanted_kernel: ContextVar[str | None] = ContextVar("intently_kernel", default=None)
"""The kernel that `kernels.use` asks for."""

_PLAIN = (Tensor, torch.nn.Parameter)
_NONE = torch._C._disabled_torch_dispatch_impl  # pyright: ignore[reportAttributeAccessIssue]


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Disable autocast: it takes effect when a matrix is made, not when it is evaluated."""
    return torch.autocast(device.type, enabled=False) if in_autocast(device) else nullcontext()


def in_autocast(device: torch.device) -> bool:
    """Whether autocast is on for a kind of device that has it."""
    return device.type in ("cpu", "cuda") and torch.is_autocast_enabled(device.type)
