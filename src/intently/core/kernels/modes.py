"""PyTorch's modes around a call: autocast, and derivatives that a kernel may not support."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad

from intently.foundation.arrays import valued


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


_PLAIN = (Tensor, torch.nn.Parameter)
_NONE = torch._C._disabled_torch_dispatch_impl  # pyright: ignore[reportAttributeAccessIssue]


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Disable autocast: it takes effect when a matrix is made, not when it is evaluated."""
    return torch.autocast(device.type, enabled=False) if in_autocast(device) else nullcontext()


def in_autocast(device: torch.device) -> bool:
    """Whether autocast is on for a kind of device that has it."""
    return device.type in ("cpu", "cuda") and torch.is_autocast_enabled(device.type)
