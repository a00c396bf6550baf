"""A mutant: a base with slips, what its user tells the examiner, and what the slips change."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from benchmarks.checking.planted.base import Base, Slip
from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.observing import Observed, difference, observed

SAME = 1e-9
"""Relative differences in float64 up to here are rounding."""


@dataclass(frozen=True)
class Mutant:
    """Correct attention with one or two mistakes in it.

    ``name`` is unique in a set and stable for a seed; ``base`` names the correct code and ``kinds``
    the mistakes, slugs of `planted.KINDS`.
    """

    name: str
    base: str
    kinds: tuple[str, ...]
    draw: Draw
    slips: tuple[Slip, ...]
    of: Base

    def make(self) -> Any:
        """The function or module with the mistakes in it, a fresh one at each call."""
        return self.of.subject(self.draw, self.slips)

    def correct(self) -> Any:
        """The same without the mistakes: same shapes, same weights, same spelling."""
        return self.of.subject(self.draw)

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments that a user gives to the examiner, who knows only the intent."""
        return self.of.ask(self.draw)

    @cached_property
    def differences(self) -> dict[str, float]:
        """How far the mutant is from `correct` in each case, relative, in float64."""
        return self._apart(self.slips, ())

    @property
    def difference(self) -> float:
        """The largest of the differences; ∞ where one of the two raises or has another shape."""
        return max(self.differences.values())

    @property
    def equivalent(self) -> bool:
        """Whether nothing that a user can observe differs from `correct`."""
        return self.difference <= SAME

    @cached_property
    def unseen(self) -> tuple[str, ...]:
        """Kinds without effect here: taking that slip alone away changes nothing observable."""
        if len(self.slips) == 1:
            return self.kinds if self.equivalent else ()
        return tuple(
            each.kind
            for each in self.slips
            if max(self._apart(self.slips, tuple(x for x in self.slips if x != each)).values())
            <= SAME
        )

    @property
    def diff(self) -> str:
        """The mistakes as lines taken away and lines added."""
        before, after = self.of.source().splitlines(), self.of.source(self.slips).splitlines()
        lines = difflib.unified_diff(before, after, lineterm="", n=0)
        return "\n".join(x for x in lines if not x.startswith(("---", "+++", "@@")))

    def _apart(self, a: tuple[Slip, ...], b: tuple[Slip, ...]) -> dict[str, float]:
        found = {}
        for case in self.of.cases(self.draw):
            one, other = (self._seen(slips, case) for slips in (a, b))
            raised = one is None, other is None
            if any(raised):
                found[case.name] = 0.0 if all(raised) else math.inf
            else:
                found[case.name] = difference(one, other)
        return found

    def _seen(self, slips: tuple[Slip, ...], case: Any) -> Observed | None:
        """What is observed, or None where the subject raises."""
        try:
            return observed(lambda: self.of.subject(self.draw, slips), case)
        except (RuntimeError, IndexError, ValueError, TypeError):
            if not slips:
                raise
            return None
