"""Computing beside a model without side effects on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch.utils._python_dispatch import _disable_current_modes

from intently.kernels.modes import no_autocast


@contextmanager
def alone(device: torch.device) -> Iterator[None]:
    """Compute without gradients, autocast and modes of the user."""
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
