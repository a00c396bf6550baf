"""What a checkpoint holds of a run beside its weights, and the checks before it is resumed.

A resumed run has the options, the data and the random state of its checkpoint.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intently.errors import ArgumentError, CheckpointError, build, shape_of
from intently.tasks.training.batches import Data
from intently.tasks.training.checkpoint import versions
from intently.tasks.training.options import TrainingOptions


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


CHANGEABLE = {
    *("steps", "seconds", "patience", "threads", "device", "parallel"),
    *("save_every", "evaluate_every", "keep"),
}
"""Options that may change when a run resumes."""

COUNT = range(2**63)
STATE = {
    "position": {
        "step": COUNT,
        "epoch": COUNT,
        "batch": COUNT,
        "tokens": COUNT,
        "seconds": float,
        "evaluated": COUNT,
        "loss_sum": float,
        "loss_steps": COUNT,
        "best": (str, None),
        "warmed": (COUNT, None),
    },
    "history": {
        "records": [[COUNT, float, float, COUNT, float]],
        "evaluations": [{"step": COUNT, "scores": {str: float}, "seconds": float}],
    },
    "options": {str: {str: object}},
    "data": str,
    "dev": (str, None),
    "threads": range(1, 2**10),
    "processes": range(1, 2**20),
    "device": str,
    "versions": {str: str},
}
"""The shape of the state that the trainer stores in a checkpoint; see `files.fault`."""


def check_same_run(
    state: Mapping[str, Any],
    options: TrainingOptions,
    data: Data,
    processes: int = 1,
    device: str = "cpu",
    dev: str | None = None,
    where: str = "the checkpoint",
) -> None:
    """Check that options, data and ``dev`` set are those of the checkpoint's ``state``.

    Options in `CHANGEABLE` may differ. Raises ArgumentError for any other difference. Warns if
    versions, threads, the kind of ``device`` or the number of processes differ: the last bits may
    then differ from those of an uninterrupted run.
    """
    words = data.words
    stored = TrainingOptions.from_dict(state["options"], f"options of {where}").to_dict()
    other = [
        (words.get(name, name), stored[group][name], value)
        for group, values in options.to_dict().items()
        for name, value in values.items()
        if value != stored[group][name] and name not in CHANGEABLE
    ]
    if other:
        names, before, given = zip(*other)
        expected = f"{', '.join(map(repr, before))}, with which the run began"
        again = ", ".join(f"{name}={value!r}" for name, value, _ in other)
        raise build(
            ArgumentError,
            ", ".join(names),
            expected,
            ", ".join(map(repr, given)),
            fix=f"Resume with {again}, or start a new run in another folder",
        )
    if data.fingerprint != state["data"]:
        expected = f"the data the run began with (checksum {state['data']})"
        got = f"{len(data)} other pairs ({data.fingerprint})"
        most = words.get("max_length", "max_length")
        cause = f"the files, the pairs held out (dev), the tokenizers or {most} have changed"
        raise build(ArgumentError, "data", expected, got, cause)
    if None not in (dev, state["dev"]) and dev != state["dev"]:
        raise build(
            ArgumentError,
            "dev",
            f"the dev set the run began with (checksum {state['dev']})",
            f"another ({dev})",
            "scores on two dev sets cannot be compared",
        )
    changes = [
        f"{name} {state['versions'].get(name)} → {version}"
        for name, version in versions().items()
        if version != state["versions"].get(name)
    ]
    threads = options.run.threads
    if threads not in (None, state["threads"]):
        changes.append(f"threads {state['threads']} → {threads}")
    if device != state["device"]:
        changes.append(f"device {state['device']} → {device}")
    before = state["processes"]
    if processes != before:
        drop = options.model.dropout > 0
        changes.append(f"processes {before} → {processes}" + drop * ", which draw other dropout")
    if changes:
        warnings.warn(
            f"The run resumes under other conditions than it began ({', '.join(changes)}): "
            "its weights may differ in their last bits from those of an uninterrupted run.",
            stacklevel=2,
        )
