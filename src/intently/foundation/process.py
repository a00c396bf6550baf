"""What runs: whether it is a fork, its memory and what is free, and a bar on its terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from intently.errors import ArgumentError, build

if TYPE_CHECKING:
    import torch

is_fork = False
"""Whether this process was forked since Intently was imported.

PyTorch's threads are gone then, and OpenMP waits for them forever.
"""


def _in_child() -> None:
    global is_fork
    is_fork = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


LITTLE = 2**28
"""Needs below so many bytes are not checked."""

CONTAINER = Path("/sys/fs/cgroup")


def peak() -> int | None:
    """Return the peak memory of this process in bytes, None on Windows."""
    if sys.platform == "win32":
        return None
    import resource

    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return taken if sys.platform == "darwin" else 1024 * taken


def available(device: torch.device | None = None) -> int | None:
    """Return the free bytes on ``device``, None if the system does not tell.

    On the CPU: the smaller of what the machine and the container have free; outside Linux, all
    memory of the machine.
    """
    if device is not None and device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    left = [_machine(), _container()]
    return min((n for n in left if n is not None), default=None)


def check_fits(
    argument: str, needs: float, got: str, fix: str, device: torch.device | None = None
) -> None:
    """Raise `ArgumentError` unless the bytes that something ``needs`` at least are free.

    >>> check_fits("beam", 10, "beam=1", "try less")
    """
    left = available(device) if needs > LITTLE else None
    if left is not None and needs > left:
        raise build(
            ArgumentError,
            argument,
            f"what {left / 1e9:,.1f} GB of free memory hold",
            f"{got}, which needs at least {needs / 1e9:,.1f} GB",
            fix=fix,
        )


def _machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(x.split()[1]) for x in lines if x.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        names = "SC_PHYS_PAGES", "SC_PAGE_SIZE"
        if not set(names) <= getattr(os, "sysconf_names", {}).keys():
            return None
        pages, size = map(os.sysconf, names)
        return pages * size


def _container() -> int | None:
    """Return the free memory of a control group (version 2), with inactive file cache."""
    try:
        most = int((CONTAINER / "memory.max").read_text(encoding="ascii"))
        taken = int((CONTAINER / "memory.current").read_text(encoding="ascii"))
        lines = (CONTAINER / "memory.stat").read_text(encoding="ascii").splitlines()
        files = sum(int(x.split()[1]) for x in lines if x.startswith("inactive_file "))
    except (OSError, ValueError):
        return None
    return max(0, most - taken + files)


LATE = 1.0
"""Seconds before a bar is shown."""


@contextmanager
def late_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Yield what moves a bar: called with what is done, how many are done, how many there are.

    The bar is drawn on the standard error, if that is a terminal, and disappears at the end.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task, since = bar.add_task("", total=None), time.monotonic()

    def hear(what: str, done: int, total: int) -> None:
        bar.update(task, description=what, completed=done, total=total)
        if time.monotonic() - since > LATE:
            bar.start()

    try:
        yield hear
    finally:
        bar.stop()
