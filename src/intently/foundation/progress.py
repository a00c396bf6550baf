"""A bar on the terminal, for what takes longer than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
