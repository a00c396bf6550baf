"""Many processes that train as one: who is here, what they tell each other, and when one is gone.

``torchrun`` starts the processes and says in the environment which is which. The first of them,
rank 0, alone reads and writes the folder of a run, prints, and scores the dev set; the others learn
from it what came out.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from intently.errors import ArgumentError, IntentlyError, build
from intently.training.checkpoint import Checkpoints

T = TypeVar("T")

TIMEOUT = timedelta(minutes=2)
"""How long a step waits for a process that is silent, one whose machine is gone, say."""

PATIENCE = timedelta(hours=24)
"""How long the others wait while the first scores the dev set or reads and writes files."""

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun says, and PyTorch needs to find the others."""


class LostError(IntentlyError, RuntimeError):
    """A process of the run is gone, or does not answer."""


class FirstError(IntentlyError, RuntimeError):
    """The first process failed by an error that is not Intently's; the others are told so."""


@dataclass(frozen=True)
class Processes:
    """Which process of the run one is: its ``rank`` of 0 … ``count`` - 1.

    >>> alone = Processes()
    >>> alone.first, alone.total([1.5, 2.0]), alone.from_first(lambda: "read once")
    (True, [1.5, 2.0], 'read once')
    """

    rank: int = 0
    count: int = 1
    patient: Any = field(default=None, repr=False, compare=False)

    @property
    def first(self) -> bool:
        """Whether this is the process that prints, reads and writes."""
        return self.rank == 0

    def device(self, kind: str = "auto") -> torch.device:
        """Return the device of this process, of CUDA that of its number on the machine.

        ``kind`` is "cpu", "cuda", or "auto": CUDA where PyTorch finds it, else the CPU. Raises
        `ArgumentError` for "cuda" where PyTorch finds none.
        """
        found = torch.cuda.is_available()
        if kind == "cuda" and not found:
            why = "a build without CUDA" if torch.version.cuda is None else "no GPU or driver"
            raise build(
                ArgumentError,
                "device",
                "'cuda' where PyTorch finds a GPU",
                f"'cuda' and {why}",
                fix="Use device='cpu'",
            )
        if kind == "cpu" or not found:
            return torch.device("cpu")
        alone = torch.cuda.current_device() if self.count == 1 else self.rank
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", alone)))

    def total(self, values: Sequence[float]) -> list[float]:
        """Return the sum over all processes of each value; all must call it."""
        if self.count == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(numbers)
        return numbers.tolist()

    def wait(self) -> None:
        """Wait until all processes have come here, however long the first works alone."""
        if self.count > 1:
            dist.barrier(group=self.patient)

    def from_first(self, make: Callable[[], T]) -> T:
        """Return everywhere what ``make`` returns in the first process; all must call it.

        What it raises is raised everywhere, errors that are not Intently's as `FirstError`.
        """
        if self.count == 1:
            return make()
        told: list[Any] = [None, None, ""]
        failure = None
        if self.first:
            try:
                told[0] = make()
            except Exception as error:
                failure = error
                ours = isinstance(error, IntentlyError)
                name = "" if ours else f"process 0 failed: {type(error).__name__}: "
                told[1:] = type(error) if ours else FirstError, f"{name}{error}"
        dist.broadcast_object_list(told, 0, group=self.patient)
        if failure is not None:
            raise failure
        if told[1] is not None:
            raise told[1](told[2])
        return told[0]


_JOINED: ContextVar[Processes | None] = ContextVar("joined", default=None)


def current() -> Processes:
    """Return this process among those that torchrun, or the caller, has started; else alone.

    >>> current()
    Processes(rank=0, count=1)
    """
    here = _JOINED.get()
    if here is not None:
        return here
    if dist.is_available() and dist.is_initialized():
        return Processes(dist.get_rank(), dist.get_world_size())
    if all(name in os.environ for name in VARIABLES):
        return Processes(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    return Processes()


@contextlib.contextmanager
def joined(out: Path | None = None) -> Iterator[Processes]:
    """Find the other processes, and wait for them at the end; within it again, do neither.

    A process group that the caller has initialised, with a timeout of its own, is used as it is;
    otherwise one is made, of gloo for tensors on the CPU and NCCL for those on CUDA. Alone, this
    does nothing. Raises `LostError` where another process is gone; the message names the last
    checkpoint of the run in ``out``.

    >>> with joined() as here:
    ...     here.count
    1
    """
    here = current()
    if here.count == 1:
        yield here
        return
    with _told(here, out):
        if _JOINED.get() is not None:
            yield here
            return
        here = Processes(here.rank, here.count, _patient(here))
        token = _JOINED.set(here)
        try:
            yield here
            here.wait()  # torchrun ends those who are late
        finally:
            _JOINED.reset(token)


_PATIENT: dict[Any, Any] = {}
"""The second group of each default group: it lives as long as that, being found by its number."""


def _patient(here: Processes) -> Any:
    """Return the group of all that waits long, after making the usual one where there is none."""
    if not dist.is_initialized():
        cuda = torch.cuda.is_available() and dist.is_nccl_available()
        if cuda:
            torch.cuda.set_device(here.device())
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=TIMEOUT)
        atexit.register(_leave)
    usual = dist.group.WORLD
    if usual not in _PATIENT:
        _PATIENT[usual] = dist.new_group(backend="gloo", timeout=PATIENCE)
    return _PATIENT[usual]


def _leave() -> None:
    _PATIENT.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


@contextlib.contextmanager
def _told(here: Processes, out: Path | None) -> Iterator[None]:
    """Say in one line that a process is gone, where that is why something failed."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, IntentlyError) or not _is_loss(error):
            raise
        if threading.current_thread() is threading.main_thread():
            # torchrun now ends all processes by this signal: the line below is to be read
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sees = str(error).split("\n")[0].split("] ", 1)[-1].split(". ")[0][:200]
        checkpoints = None if out is None else Checkpoints(out / "checkpoints")
        name = checkpoints and checkpoints.last()
        last = f"{checkpoints.folder / name}" if checkpoints and name else "none yet"
        raise build(
            LostError,
            "processes",
            f"{here.count} that answer",
            f"a process of this run is gone (rank {here.rank} sees: {sees})",
            f"the last checkpoint is {last}",
            "start again with --resume",
        ) from error


def _is_loss(error: RuntimeError) -> bool:
    """Whether a collective failed because another process is gone: PyTorch has no class for it."""
    words = ("gloo", "nccl", "connection", "timed out", "broken pipe")
    return isinstance(error, dist.DistError) or any(w in str(error).lower() for w in words)
