"""The state of the random number generators: saved with a run, restored after other work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from intently.errors import CheckpointError, build, shape_of


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the states of PyTorch's generators, of the CPU and of ``device``, as uint8 tensors."""
    state = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["random/cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore the states that :func:`random_state` returned."""
    torch.set_rng_state(state["random/cpu"])
    if device.type == "cuda" and "random/cuda" in state:
        torch.cuda.set_rng_state(state["random/cuda"], device)


def check_random_state(state: Mapping[str, Tensor], device: torch.device, where: str) -> None:
    """Raise CheckpointError, naming ``where``, unless :func:`set_random_state` can use the state.

    The state of a device that the run does not use is ignored.
    """
    own = random_state(device)
    names = {"random/cpu", *(own.keys() & state.keys())}
    cause = "the random state is damaged, or from another version of PyTorch"
    for name in names:
        want, got = own[name], state.get(name)
        told = "nothing" if got is None else f"{shape_of(got)} of {got.dtype}"
        if got is None or (got.shape, got.dtype) != (want.shape, want.dtype):
            expected = f"{shape_of(want)} of {want.dtype}"
            raise build(CheckpointError, f"{where}: {name}", expected, told, cause)
    try:
        torch.Generator().set_state(state["random/cpu"])
    except RuntimeError:
        expected, got = "the state of a generator", "a different one"
        raise build(CheckpointError, f"{where}: random/cpu", expected, got, cause) from None


def seed_step(seed: int, rank: int, step: int) -> None:
    """Seed one step of a process other than the first.

    The first process keeps its own random state, which checkpoints hold. The states of all other
    processes are a function of these three numbers, so nothing needs to be stored.

    >>> seed_step(1, rank=1, step=7)
    >>> first = torch.rand(())
    >>> seed_step(1, rank=1, step=7)
    >>> torch.equal(torch.rand(()), first)
    True
    """
    [number] = np.random.SeedSequence([seed, rank, step]).generate_state(1, np.uint64)
    torch.manual_seed(int(number))


@contextlib.contextmanager
def isolated_state(device: torch.device) -> Iterator[None]:
    """Restore the caller's random states and number of threads at the end.

    >>> torch.manual_seed(1), torch.rand(())  # doctest: +ELLIPSIS
    (..., tensor(0.7576))
    >>> with isolated_state(torch.device("cpu")):
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
