"""Attention code with planted mistakes, to measure an examiner that has never seen it.

A *base* is attention as people write it, and right. A *slip* is a small edit of its source that
plants one mistake of a named *kind*. A *mutant* is a base with one or two slips, compiled. The base
with the same shapes, weights and spelling but without slips is the mutant's `correct`.

    python -m benchmarks.checking planted --list

`mutants(seed)` draws a set; `sealed()` is the set of the seed in `seal.json`.
"""

from benchmarks.checking.planted.generator import BASES, Mutant, mutants, sealed
from benchmarks.checking.planted.kinds import KINDS

__all__ = ["BASES", "KINDS", "Mutant", "mutants", "sealed"]
