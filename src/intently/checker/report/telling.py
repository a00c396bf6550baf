"""How far an examination is, told to whoever listens: a command that draws a bar, say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Hear = Callable[[str, int, int], None]
"""Called with what is examined now, how many were before it, and how many there are."""

_hears: ContextVar[Hear | None] = ContextVar("hears", default=None)


@contextmanager
def heard(hear: Hear) -> Iterator[None]:
    """Call ``hear`` at each step of the examinations within."""
    token = _hears.set(hear)
    try:
        yield
    finally:
        _hears.reset(token)


def told(what: str, steps: Sequence[T]) -> Iterator[T]:
    """The steps, each told before it is taken."""
    hear = _hears.get()
    for n, step in enumerate(steps):
        if hear is not None:
            hear(what, n, len(steps))
        yield step
