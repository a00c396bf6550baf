"""Low-priority jobs in one thread, paused while requests are served."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from intently.errors import IntentlyError

Job = Iterator[None]
"""A job in steps of some milliseconds each."""


class _Ended(Exception):  # noqa: N818 - nothing went wrong
    """Raised inside a job whose result is no longer needed."""


class Background:
    """A thread that runs the job that was added last, one step at a time.

    Jobs of a lower ``rank`` wait until all others are done. A failed job is dropped, and
    ``failures`` keeps its message by its name.
    """

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        self._jobs: dict[str, tuple[tuple[int, int], Job]] = {}  # by rank, then the latest
        self._changed = threading.Condition()
        self._answering = 0
        self._added = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="intently background")
        self._thread.start()

    def add(self, name: str, job: Job, rank: int = 1) -> None:
        """Put a job before all others of its rank; a job of the same name is only moved there."""
        with self._changed:
            self._added += 1
            _, job = self._jobs.get(name, (None, job))
            self._jobs[name] = (rank, self._added), job
            self._changed.notify_all()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Pause the thread between steps while an answer is computed."""
        with self._changed:
            self._answering += 1
        try:
            yield
        finally:
            with self._changed:
                self._answering -= 1
                self._changed.notify_all()

    def drop(self, name: str) -> None:
        """Forget a job and its failure."""
        with self._changed:
            self._jobs.pop(name, None)
            self.failures.pop(name, None)
            self._changed.notify_all()

    def yielding(self) -> None:
        """Inside a job of rank 0: wait for answers and for jobs of higher rank."""
        while self._step(1):
            pass
        if self._closed:
            raise _Ended

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until jobs make a condition true; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or condition(), seconds)

    def close(self, seconds: float | None = None) -> None:
        """End the thread after its current step; wait for it at most so many seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(seconds)

    @property
    def working(self) -> bool:
        """Whether the thread is still alive."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._closed:
            if not self._step(0):
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or self._jobs)

    def _step(self, rank: int) -> bool:
        """Run a step of the newest job of the highest rank, at least ``rank``; False for none."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._answering)
            found = [(*job, name) for name, job in self._jobs.items() if job[0][0] >= rank]
            if self._closed or not found:
                return False
            _, job, name = max(found, key=lambda one: one[0])
        done = True
        try:
            next(job)
            done = False
        except (StopIteration, _Ended):
            pass
        except IntentlyError as error:
            self.failures[name] = str(error)
        except Exception as error:
            self.failures[name] = type(error).__name__
            traceback.print_exc(file=sys.stderr)
        with self._changed:
            if done and self._jobs.get(name, (None, None))[1] is job:
                del self._jobs[name]
            self._changed.notify_all()
        return True
