"""Which derivatives are being taken around a call: a kernel may not be able to give them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad


def transformed(but: str | None = None) -> bool:
    """Whether a transform of `torch.func` is at work, other than a single one called ``but``."""
    if torch.compiler.is_compiling():
        return False
    level = _functorch.maybe_current_level()
    if level is None:
        return False
    top = _functorch.peek_interpreter_stack()
    return level > 1 or top is None or top.key().name != but


def forward_mode(tensors: Iterable[Tensor]) -> bool:
    """Whether one of the tensors carries a forward-mode derivative."""
    if forward_ad._current_level < 0:
        return False
    return any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def differentiated(tensors: Iterable[Tensor]) -> bool:
    """Whether what is computed from the tensors will be differentiated, or is being traced."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return True
    return transformed() or forward_mode(tensors) or torch.compiler.is_compiling()
