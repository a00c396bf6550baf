"""Defer SIGINT, SIGTERM and SIGHUP to the end of the step."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Interruption:
    """While active, the first signal to end sets ``asked``; a second raises KeyboardInterrupt.

    These are SIGINT, SIGTERM and, where there is a terminal to be closed, SIGHUP. Those that the
    process ignores, as ``nohup`` and the background of a shell have it, stay ignored. Within
    :meth:`at_once` the first raises KeyboardInterrupt, too. Signals reach the main thread only; in
    other threads this does nothing.

    >>> with Interruption() as interruption:
    ...     signal.raise_signal(signal.SIGINT)
    ...     interruption.asked
    True
    """

    def __init__(self) -> None:
        self.asked = False
        self._abrupt = False
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

    @contextlib.contextmanager
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
