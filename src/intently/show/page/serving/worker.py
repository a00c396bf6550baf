"""One thread that answers questions, the newest first: long work gives way to it."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from typing import NamedTuple

from intently.errors import IntentlyError

PATIENCE = 0.5
"""Seconds between two looks whether anybody still waits for an answer."""


ENDED = "the server ends"


class Refused(Exception):  # noqa: N818 - it is a refusal
    """A refused question: its HTTP status and a message."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Answer(NamedTuple):
    """Bytes, their content type, and how they were sampled, "" if they are exact."""

    body: bytes
    kind: str = "application/octet-stream"
    sampled: str = ""


class _Task:
    """Work, and its outcome once it is done; abandoned if nobody waits for it."""

    def __init__(self, work: Callable[[], Answer]) -> None:
        self.work, self.done, self.abandoned = work, threading.Event(), False
        self.outcome: Answer | Exception = Refused(503, ENDED)

    def run(self) -> None:
        try:
            self.outcome = self.work()
        except (IntentlyError, Refused) as error:
            self.outcome = error
        except Exception as error:
            self.outcome = Refused(500, type(error).__name__)
            traceback.print_exc(file=sys.stderr)
        finally:
            self.done.set()


class Worker:
    """One thread that does the newest task first."""

    def __init__(self) -> None:
        self.waiting: list[_Task] = []
        self._running: list[_Task] = []
        self._news = threading.Condition()
        self._closed = False
        self.thread = threading.Thread(target=self._run, daemon=True, name="intently answers")
        self.thread.start()

    def ask(self, work: Callable[[], Answer], gone: Callable[[], bool] = lambda: False) -> Answer:
        """Do work in the thread; give it up once ``gone`` says that nobody waits for it."""
        task = _Task(work)
        with self._news:
            if self._closed:
                raise Refused(503, ENDED)
            self.waiting.append(task)
            self._news.notify()
        while not task.done.wait(PATIENCE):
            task.abandoned = task.abandoned or gone()
        if isinstance(task.outcome, Exception):
            raise task.outcome
        return task.outcome

    def give_way(self) -> None:
        """Inside long work: do what was asked since, and end if nobody waits for this any more."""
        while task := self._newest():
            self._do(task)
        if self._closed or self._running[-1].abandoned:
            raise Refused(503, "given up")

    def close(self, seconds: float | None = None) -> None:
        """End the thread; wait for it at most so many seconds."""
        with self._news:
            self._closed = True
            for task in self.waiting:
                task.done.set()
            self.waiting.clear()
            self._news.notify()
        self.thread.join(seconds)

    def _newest(self) -> _Task | None:
        with self._news:
            return self.waiting.pop() if self.waiting else None

    def _do(self, task: _Task) -> None:
        self._running.append(task)
        task.run()
        self._running.pop()

    def _run(self) -> None:
        while not self._closed:
            task = self._newest()
            if task is not None:
                self._do(task)
                continue
            with self._news:
                self._news.wait_for(lambda: self._closed or self.waiting)
