"""The examiner over planted mistakes: each mutant, and its base, which is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.checking.examining import Row, checked, loaded
from benchmarks.checking.planted.generator import SEED, Mutant, mutants
from benchmarks.checking.planted.kinds import KINDS


def tasks(given: Any) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """A row of each mutant, and what examines it."""
    loaded()
    for mutant in mutants(SEED if given.seed is None else given.seed):
        yield {"name": mutant.name, "kind": mutant.kind}, partial(examined, mutant)


def examined(mutant: Mutant) -> Row:
    """Examine a mutant and its base."""
    made = {"mutant": mutant.make(), "correct": mutant.correct()}
    row = {name: checked(subject, mutant.arguments) for name, subject in made.items()}
    return {"equivalent": mutant.equivalent, **row}


def named(row: Row) -> bool:
    """Whether the mistake was called by one of its names."""
    return bool({*KINDS[row["kind"]]} & {*_found(row)})


def _found(row: Row) -> list[str]:
    return row.get("mutant", {}).get("found", [])


def line(row: Row) -> str:
    """What was found of one, in a line."""
    return f"{row['name']}: {row.get('error') or row['mutant'].get('error') or _found(row)}"


def table(rows: list[Row]) -> str:
    """How many were found, how many named rightly, and how many bases were called wrong."""
    real = [r for r in rows if not r.get("equivalent")]
    found, right = [r for r in real if _found(r)], [r for r in real if named(r)]
    false = [r["name"] for r in rows if r.get("correct", {}).get("mistakes")]
    missed = Counter(r["kind"] for r in real if not named(r))
    return (
        f"{len(real)} mutants that differ: {len(found)} found, {len(right)} named; "
        f"{len(false)} of {len(rows)} correct ones called wrong: {', '.join(false)}\n"
        f"not named: {', '.join(f'{kind} {n}' for kind, n in missed.most_common())}"
    )


def listed(seed: int | None, only: list[str] | None) -> None:
    """Print what each mutant changes, and how much, relative and in float64.

    ∞ stands for NaN, another shape, or an error; 0 for what no user can observe.
    """
    for mutant in mutants(SEED if seed is None else seed):
        if not only or any(text in mutant.name for text in only):
            print(f"{mutant.name} ({mutant.difference:.1e})\n{mutant.diff}\n", flush=True)
