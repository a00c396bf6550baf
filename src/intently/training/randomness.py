"""The state of the random numbers: saved with a run, put aside around other work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the state of PyTorch's generators as uint8 tensors: the CPU's, and the device's."""
    state = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["random/cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Tensor]) -> None:
    """Go on with the random numbers where :func:`random_state` was called."""
    torch.set_rng_state(state["random/cpu"])
    if "random/cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["random/cuda"])


@contextlib.contextmanager
def surroundings_kept() -> Iterator[None]:
    """Restore the caller's random state and number of threads at the end.

    >>> torch.manual_seed(1), torch.rand(())  # doctest: +ELLIPSIS
    (..., tensor(0.7576))
    >>> with surroundings_kept():
    ...     _ = torch.manual_seed(2)
    >>> torch.rand(())
    tensor(0.2793)
    """
    threads = torch.get_num_threads()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            torch.set_num_threads(threads)
