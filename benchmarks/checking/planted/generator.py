"""Mutants, and sets of them drawn from a seed: every kind alone, many again, and pairs of two."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.checking.planted import (
    cached,
    functions,
    functions_of_position,
    layers,
    models,
    modules,
    modules_of_order,
    ports,
)
from benchmarks.checking.planted.base import Base, MisfitError, Slip
from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.kinds import KINDS
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


FAMILIES = (
    functions,
    functions_of_position,
    modules,
    modules_of_order,
    layers,
    cached,
    models,
    ports,
)

BASES: tuple[Base, ...] = tuple(
    found for family in FAMILIES for found in vars(family).values() if isinstance(found, Base)
)

SINGLE, PAIRS = 130, 70
SEAL = Path(__file__).with_name("seal.json")


def mutants(seed: int) -> list[Mutant]:
    """The set of a seed: `SINGLE` mutants with one slip, of every kind, and `PAIRS` with two.

    Which base gets which mistakes, shapes, weights and spelling all follow from the seed.
    """
    random = Random(seed)
    alone = [(base, (each,)) for base in BASES for each in base.slips]
    random.shuffle(alone)
    first = {kind: next(x for x in alone if x[1][0].kind == kind) for kind in sorted(KINDS)}
    chosen = list(first.values())
    chosen += [x for x in alone if x not in chosen][: SINGLE - len(chosen)]
    return [_mutant(seed, *x) for x in chosen + _pairs(random)]


def sealed() -> list[Mutant]:
    """The set of the seed in `seal.json`, which is what the examiner is measured on."""
    seal = json.loads(SEAL.read_text())
    if commitment(seal["seed"]) != seal["sha256"]:
        raise ValueError(f"{SEAL.name}: the seed is not the one that was committed to")
    return mutants(seal["seed"])


def commitment(seed: int) -> str:
    """The SHA-256 of the seed, written as a decimal number."""
    return hashlib.sha256(str(seed).encode()).hexdigest()


def _pairs(random: Random) -> list[tuple[Base, tuple[Slip, ...]]]:
    """Pairs of slips of different kinds that fit into one base, over the bases in turn."""
    found: list[tuple[Base, tuple[Slip, ...]]] = []
    while len(found) < PAIRS:
        for base in random.sample(BASES, len(BASES)):
            pair = random.choice(_fitting(base))
            if len(found) < PAIRS and (base, pair) not in found:
                found.append((base, pair))
    return found


@cache
def _fitting(base: Base) -> list[tuple[Slip, ...]]:
    return [(a, b) for a in base.slips for b in base.slips if a.kind < b.kind and _fit(base, a, b)]


def _fit(base: Base, a: Slip, b: Slip) -> bool:
    """Whether the edits of both leave each other alone, so that their order does not matter."""
    try:
        return base.source((a, b)) == base.source((b, a))
    except MisfitError:
        return False


def _mutant(seed: int, base: Base, slips: tuple[Slip, ...]) -> Mutant:
    name = f"{base.name}: {' + '.join(x.name for x in slips)}"
    return Mutant(name, base.name, tuple(x.kind for x in slips), Draw(seed, name), slips, base)
