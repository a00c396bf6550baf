"""Computing beside a model, unseen by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch.utils._python_dispatch import _disable_current_modes

from intently.kernels.modes import no_autocast


@contextmanager
def alone(device: torch.device) -> Iterator[None]:
    """No gradients, no autocast, and no mode of the user's that would see what is computed here."""
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
