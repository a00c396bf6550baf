"""Computing beside a model without side effects on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.utils._python_dispatch import _disable_current_modes

from intently.core.kernels.operands import in_autocast, no_autocast

_AS_IT_IS = nullcontext()


def alone(device: torch.device) -> AbstractContextManager[None]:
    """Compute without gradients, autocast and modes of the user."""
    modes = torch._C._len_torch_dispatch_stack() + torch._C._is_torch_function_enabled()
    modes += torch.is_grad_enabled() + torch.is_inference_mode_enabled()
    return _changed(device) if modes or in_autocast(device) else _AS_IT_IS


@contextmanager
def _changed(device: torch.device) -> Iterator[None]:
    modes = torch._C._len_torch_dispatch_stack()
    none = _disable_current_modes() if modes else nullcontext()
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        no_autocast(device),
        torch._C.DisableTorchFunction(),
        none,
    ):
        yield
