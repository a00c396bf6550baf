"""What an examination finds, and how far it is, told to whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

from intently.checker.catalogue import CATALOGUE, Kind

MORE = (
    'pass inputs= (an example call), layout= (such as "tbc") or returns= ("scores" or "weights"), '
    "and state more: mask=, bias=, scale="
)
"""What to do about something that was not measured."""
T = TypeVar("T")
Hear = Callable[[str, int, int], None]
"""Called with what is examined now, how many were before it, and how many there are."""

_hears: ContextVar[Hear] = ContextVar("hears", default=lambda what, before, every: None)


@dataclass(frozen=True)
class Example:
    """Weights of one head, as they should be and as they are, around the ``cell`` that tells.

    ``queries`` and ``keys`` are the positions of rows and columns; ``cell`` is a query and a key.
    """

    expected: tuple[tuple[float, ...], ...]
    found: tuple[tuple[float, ...], ...]
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    cell: tuple[int, int]

    def __str__(self) -> str:
        i, j = self.cell
        row, column = self.queries.index(i), self.keys.index(j)
        right, wrong = (x[row][column] + 0.0 for x in (self.expected, self.found))  # no −0
        return f"query {i} gives key {j} the weight {wrong:.3g}; expected {right:.3g}"


@dataclass(frozen=True)
class Finding:
    """One finding: its ``name`` in the catalogue, and in a sentence what was seen where.

    ``cell`` is the smallest counterexample as (batch row, head, query, key), as far as it has one;
    ``fit`` the relative residual that the explanation leaves; ``line`` the file and line of the
    product in the code that is examined.
    """

    name: str
    said: str
    kind: Kind = "mistake"
    where: str = ""
    cell: tuple[int, ...] = ()
    fit: float | None = None
    example: Example | None = None
    line: str = ""

    @property
    def title(self) -> str:
        """The finding's title in the catalogue, or its name."""
        return CATALOGUE[self.name].title if self.name in CATALOGUE else self.name

    @property
    def cure(self) -> str:
        """How to mend it; empty for what needs no cure."""
        return CATALOGUE[self.name].cure if self.name in CATALOGUE else ""

    def __str__(self) -> str:
        at = f"{self.where}: " if self.where else ""
        line = f" at {self.line}" if self.line else ""
        return f"{self.kind}: {at}{self.said} [{self.name}]{line}"


def alike(
    found: Iterable[T], by: Callable[[T], Any] = attrgetter("kind", "name", "said", "line")
) -> list[list[T]]:
    """Findings that say the same of several places, together, in the order of the first."""
    out: dict[Any, list[T]] = {}
    for x in found:
        out.setdefault(by(x), []).append(x)
    return list(out.values())


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Each finding once for each place."""
    return tuple(first for first, *_ in alike(findings, attrgetter("name", "where")))


def places(findings: Iterable[Finding], most: int = 3) -> str:
    """Where findings are, in words: ``h.0, h.1, h.2 and 9 more``."""
    known = [f.where for f in findings if f.where]
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more


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
        hear(what, n, len(steps))
        yield step
