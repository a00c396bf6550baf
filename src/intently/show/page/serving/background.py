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
        self._jobs: list[tuple[int, int, str, Job]] = []
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
            for i, (_, _, known, its) in enumerate(self._jobs):
                if known == name:
                    self._jobs[i] = (rank, self._added, name, its)
                    break
            else:
                self._jobs.append((rank, self._added, name, job))
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
            self._jobs = [one for one in self._jobs if one[2] != name]
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
            found = [job for job in self._jobs if job[0] >= rank]
            if self._closed or not found:
                return False
            name, job = max(found, key=lambda one: one[:2])[2:]
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
            if done:
                self._jobs = [one for one in self._jobs if one[3] is not job]
            self._changed.notify_all()
        return True
