"""Work that nobody waits for yet, in one thread that stands still while somebody waits."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from intently.errors import IntentlyError

Job = Iterator[None]
"""Work in steps of some milliseconds each."""


class _Ended(Exception):  # noqa: N818 - nothing went wrong
    """Nobody waits for this work any more."""


class Background:
    """A thread that works on the job that was added last, a step at a time.

    Jobs with a lower ``rank`` wait until all others are done. A job that fails is dropped, and
    what it raised is kept in ``failures`` by its name.
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
        """Put a job before all others of its rank; one of the same name is only moved there."""
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
        """While an answer is made, the thread makes no further step."""
        with self._changed:
            self._answering += 1
        try:
            yield
        finally:
            with self._changed:
                self._answering -= 1
                self._changed.notify_all()

    def drop(self, name: str) -> None:
        """Forget a job that nobody asks for any more, and that it failed."""
        with self._changed:
            self._jobs = [one for one in self._jobs if one[2] != name]
            self.failures.pop(name, None)
            self._changed.notify_all()

    def yielding(self) -> None:
        """Let a job of rank 0 wait while an answer is made, and while others have work."""
        while self._step(1):
            pass
        if self._closed:
            raise _Ended

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until a condition holds that jobs bring about; say whether it does."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or condition(), seconds)

    def close(self, seconds: float | None = None) -> None:
        """End the thread after its step, for which it is given some seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(seconds)

    @property
    def working(self) -> bool:
        """Whether the thread has not ended."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._closed:
            if not self._step(0):
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or self._jobs)

    def _step(self, rank: int) -> bool:
        """Make a step of the newest job of the highest rank, if there is one of this rank."""
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
