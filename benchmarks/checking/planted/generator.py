"""Draw a set of mutants from a seed: every kind alone, many again, and pairs of two at once."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from random import Random

from benchmarks.checking.planted import (
    cached,
    diffusion,
    functions,
    functions_of_padding,
    functions_of_position,
    library,
    models,
    modules,
    modules_of_order,
    references,
    torch_layers,
)
from benchmarks.checking.planted.base import Base, MisfitError, Slip
from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.kinds import KINDS
from benchmarks.checking.planted.mutant import Mutant

FAMILIES = (
    functions,
    functions_of_padding,
    functions_of_position,
    modules,
    modules_of_order,
    torch_layers,
    library,
    cached,
    models,
    diffusion,
    references,
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
