"""The state of the random numbers: saved with a run, put aside around other work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from intently.errors import CheckpointError, build, shape_of


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the state of PyTorch's generators as uint8 tensors: the CPU's, and the device's."""
    state = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["random/cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Go on with the random numbers where :func:`random_state` was called."""
    torch.set_rng_state(state["random/cpu"])
    if device.type == "cuda" and "random/cuda" in state:
        torch.cuda.set_rng_state(state["random/cuda"], device)


def check_random_state(state: Mapping[str, Tensor], device: torch.device, where: str) -> None:
    """Raise CheckpointError, which says ``where``, unless :func:`set_random_state` can use it.

    A state of a device that the run does not go on with is passed over.
    """
    own = random_state(device)
    names = {"random/cpu", *(own.keys() & state.keys())}
    cause = "the state of the random numbers is damaged, or of another version of PyTorch"
    for name in names:
        want, got = own[name], state.get(name)
        told = "nothing" if got is None else f"{shape_of(got)} of {got.dtype}"
        if got is None or (got.shape, got.dtype) != (want.shape, want.dtype):
            expected = f"{shape_of(want)} of {want.dtype}"
            raise build(CheckpointError, f"{where}: {name}", expected, told, cause)
    try:
        torch.Generator().set_state(state["random/cpu"])
    except RuntimeError:
        expected, got = "the state of a generator", "other numbers"
        raise build(CheckpointError, f"{where}: random/cpu", expected, got, cause) from None


def seed_step(seed: int, rank: int, step: int) -> None:
    """Seed the random numbers of a step for a process that is not the first.

    The first goes on with its own, which its checkpoints hold; those of the others are a function
    of these three numbers, so that there is nothing to store.

    >>> seed_step(1, rank=1, step=7)
    >>> first = torch.rand(())
    >>> seed_step(1, rank=1, step=7)
    >>> torch.equal(torch.rand(()), first)
    True
    """
    [number] = np.random.SeedSequence([seed, rank, step]).generate_state(1, np.uint64)
    torch.manual_seed(int(number))


@contextlib.contextmanager
def surroundings_kept(device: torch.device) -> Iterator[None]:
    """Restore the caller's random state, the device's too, and number of threads at the end.

    >>> torch.manual_seed(1), torch.rand(())  # doctest: +ELLIPSIS
    (..., tensor(0.7576))
    >>> with surroundings_kept(torch.device("cpu")):
    ...     _ = torch.manual_seed(2)
    >>> torch.rand(())
    tensor(0.2793)
    """
    threads = torch.get_num_threads()
    state = random_state(device)
    try:
        yield
    finally:
        set_random_state(state, device)
        torch.set_num_threads(threads)
