"""Mutants: every base with each of its slips, drawn from a seed."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from benchmarks.checking.planted import cached, functions, models, modules
from benchmarks.checking.planted.base import Base, Slip
from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.observing import Case, Observed, difference, observed

SEED = 2250695935917382379
"""What the examiner is measured on."""

SAME = 1e-9
"""Relative differences in float64 up to here are rounding."""

BASES = tuple(
    x
    for family in (functions, modules, cached, models)
    for x in vars(family).values()
    if isinstance(x, Base)
)


@dataclass(frozen=True)
class Mutant:
    """Correct attention with a mistake in it; ``name`` is unique in a set and stable for a seed."""

    name: str
    of: Base
    draw: Draw
    slip: Slip

    @property
    def kind(self) -> str:
        """The mistake, of `kinds.KINDS`."""
        return self.slip.kind

    def make(self) -> Any:
        """The function or module with the mistake in it, a fresh one at each call."""
        return self.of.subject(self.draw, self.slip)

    def correct(self) -> Any:
        """The same without the mistake: same shapes, same weights."""
        return self.of.subject(self.draw)

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments that a user gives to the examiner, who knows only the intent."""
        return self.of.ask(self.draw)

    @cached_property
    def difference(self) -> float:
        """How far it is from `correct` in any case, relative, in float64; ∞ where it raises."""
        return max(self._apart(case) for case in self.of.cases(self.draw))

    @property
    def equivalent(self) -> bool:
        """Whether nothing that a user can observe differs from `correct`."""
        return self.difference <= SAME

    @property
    def diff(self) -> str:
        """The mistake as lines taken away and lines added."""
        before, after = self.of.source().splitlines(), self.of.source(self.slip).splitlines()
        lines = difflib.unified_diff(before, after, lineterm="", n=0)
        return "\n".join(x for x in lines if not x.startswith(("---", "+++", "@@")))

    def _apart(self, case: Case) -> float:
        right: Observed = observed(self.correct, case)
        try:
            return difference(observed(self.make, case), right)
        except (RuntimeError, IndexError, ValueError, TypeError):
            return math.inf


def mutants(seed: int = SEED) -> list[Mutant]:
    """Every base with each of its slips; shapes and weights follow from the seed and the name."""
    named = [(f"{base.name}: {each.kind}", base, each) for base in BASES for each in base.slips]
    return [Mutant(name, base, Draw(seed, name), each) for name, base, each in named]
