"""Many processes that train one model: who does what.

``torchrun`` starts the processes and sets their ranks in the environment. Only the first, rank 0,
reads and writes the folder of a run, prints, and scores the dev set; it sends the results to all
other processes. Signals to end are deferred to the end of the step.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from intently.errors import ArgumentError, IntentlyError, build
from intently.tasks.training.checkpoint import Checkpoints

T = TypeVar("T")

TIMEOUT, PATIENCE = timedelta(minutes=2), timedelta(hours=24)
"""How long a step waits for a silent process, such as one whose machine is gone; and how long the
others wait while the first scores the dev set or reads and writes files."""

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The variables that torchrun sets and PyTorch needs to connect the processes."""


class LostError(IntentlyError, RuntimeError):
    """Another process of the run is gone, does not answer, or failed with a foreign error."""


@dataclass(frozen=True)
class Processes:
    """A process of a run: its ``rank`` in 0 … ``count`` - 1, and the group that waits long."""

    rank: int = 0
    count: int = 1
    patient: Any = field(default=None, repr=False, compare=False)

    @property
    def first(self) -> bool:
        """Whether this is the process that prints, reads and writes."""
        return self.rank == 0

    def device(self, kind: str = "auto") -> torch.device:
        """Return the device of this process; with CUDA, the GPU of its local rank.

        ``kind`` is "cpu", "cuda", or "auto": CUDA if PyTorch finds it, else the CPU. Raises
        `ArgumentError` for "cuda" if PyTorch finds no GPU.
        """
        available = torch.cuda.is_available()
        if kind == "cuda" and not available:
            why = "a build without CUDA" if torch.version.cuda is None else "no GPU or driver"
            expected, got = "'cuda' where PyTorch finds a GPU", f"'cuda' and {why}"
            raise build(ArgumentError, "device", expected, got, fix="Use device='cpu'")
        if kind == "cpu" or not available:
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
        """Wait until all processes arrive here, however long the first process takes."""
        if self.count > 1:
            dist.barrier(group=self.patient)

    def from_first(self, make: Callable[[], T]) -> T:
        """Return in every process the result of ``make`` in the first; all must call it.

        Its errors are raised in every process, foreign ones as `LostError`.
        """
        if self.count == 1:
            return make()
        outcome: list[Any] = [None, None, ""]
        failure = None
        if self.first:
            try:
                outcome[0] = make()
            except Exception as error:
                failure, ours = error, isinstance(error, IntentlyError)
                name = "" if ours else f"process 0 failed: {type(error).__name__}: "
                outcome[1:] = type(error) if ours else LostError, f"{name}{error}"
        dist.broadcast_object_list(outcome, 0, group=self.patient)
        if failure is not None:
            raise failure
        result, kind, message = outcome
        if kind is not None:
            raise kind(message)
        return result


_JOINED: ContextVar[Processes | None] = ContextVar("joined", default=None)


def current() -> Processes:
    """Return this process among those that torchrun or the caller started, or a single one."""
    here = _JOINED.get()
    if here is not None:
        return here
    if dist.is_available() and dist.is_initialized():
        return Processes(dist.get_rank(), dist.get_world_size())
    if all(name in os.environ for name in VARIABLES):
        return Processes(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    return Processes()


@contextmanager
def joined(out: Path | None = None) -> Iterator[Processes]:
    """Connect the processes, and wait for all at the end; a nested call does nothing.

    A process group that the caller has initialised is used as it is; otherwise one is made, with
    gloo on the CPU and NCCL on CUDA. For a single process, this does nothing. Raises `LostError` if
    another process is gone; the message names the last checkpoint of the run in ``out``.
    """
    here = current()
    if here.count == 1:
        yield here
        return
    with naming_the_lost(here, out):
        if _JOINED.get() is not None:
            yield here
            return
        if not dist.is_initialized():
            cuda = torch.cuda.is_available() and dist.is_nccl_available()
            if cuda:
                torch.cuda.set_device(here.device())
            dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=TIMEOUT)
            atexit.register(_leave)
        here = replace(here, patient=_patient(dist.group.WORLD))
        token = _JOINED.set(here)
        try:
            yield here
            here.wait()  # torchrun kills late processes
        finally:
            _JOINED.reset(token)


@cache
def _patient(usual: Any) -> Any:
    """Return the group with the long timeout beside the ``usual`` one; it lives as long."""
    return dist.new_group(backend="gloo", timeout=PATIENCE)


def _leave() -> None:
    _patient.cache_clear()
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def naming_the_lost(here: Processes, out: Path | None) -> Iterator[None]:
    """Turn the failure of a collective into a `LostError` of one line."""
    words = ("gloo", "nccl", "connection", "timed out", "broken pipe")
    try:
        yield
    except RuntimeError as error:
        # PyTorch has no class of its own for this error
        lost = isinstance(error, dist.DistError) or any(w in str(error).lower() for w in words)
        if isinstance(error, IntentlyError) or not lost:
            raise
        if threading.current_thread() is threading.main_thread():
            # torchrun then kills all processes with this signal; the message must be printed first
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sees = str(error).split("\n")[0].split("] ", 1)[-1].split(". ")[0][:200]
        checkpoints = None if out is None else Checkpoints(out / "checkpoints")
        name = checkpoints and checkpoints.last()
        last = checkpoints.path(name) if checkpoints and name else "none yet"
        raise build(
            LostError,
            "processes",
            f"{here.count} that answer",
            f"a process of this run is gone (rank {here.rank} sees: {sees})",
            f"the last checkpoint is {last}",
            "start again with --resume",
        ) from error


class Interruption:
    """While active, the first signal to end sets ``asked``; a second raises KeyboardInterrupt.

    These are SIGINT, SIGTERM and, where there is a terminal to be closed, SIGHUP. Those that the
    process ignores, as ``nohup`` and the background of a shell have it, stay ignored. Within
    :meth:`at_once` the first raises KeyboardInterrupt, too. Signals reach the main thread only; in
    other threads this does nothing.
    """

    def __init__(self) -> None:
        self.asked = self._abrupt = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                kind = getattr(signal, name, None)
                if kind is not None and signal.getsignal(kind) is not signal.SIG_IGN:
                    self._before[kind] = signal.signal(kind, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for kind, handler in self._before.items():
            signal.signal(kind, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let the first signal raise KeyboardInterrupt, for work that may be abandoned."""
        self._abrupt = True
        try:
            yield
        finally:
            self._abrupt = False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        again, self.asked = self.asked, True
        if again or self._abrupt:
            raise KeyboardInterrupt
