"""List the planted mistakes: attention code with one or two mistakes, and what they change.

    python benchmarks/planting.py [--list [--diff]] [--seed N] [--only TEXT]

Without ``--seed``, the set is that of the committed seed in planted/seal.json. A difference is
relative and in float64; ∞ stands for NaN, another shape, or an error. `equivalent` mutants differ
in nothing that a user can observe; `unseen` kinds have no effect beside the other mistake.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable

import torch
from planted import Mutant, mutants, sealed


def counted(what: str, found: Iterable[str]) -> str:
    """A table of how often each is found."""
    rows = [f"| {name} | {n} |" for name, n in sorted(Counter(found).items())]
    return "\n".join([f"| {what} | mutants |", "|---|--:|", *rows])


def row(mutant: Mutant) -> str:
    """A line of the list."""
    kinds, unseen = ", ".join(mutant.kinds), ", ".join(mutant.unseen)
    equivalent = "yes" if mutant.equivalent else ""
    return (
        f"| {mutant.name} | {mutant.base} | {kinds} | {equivalent} | {mutant.difference:.1e}"
        f" | {unseen} |"
    )


def listed(found: list[Mutant], diff: bool) -> None:
    """Print a line for each mutant, and how many change nothing."""
    print("| name | base | kinds | equivalent | difference | unseen |\n|---|---|---|---|--:|---|")
    for mutant in found:
        print(row(mutant), flush=True)
        if diff:
            print(f"\n{mutant.diff}\n")
    print(f"\n{sum(x.equivalent for x in found)} equivalent\n")


def main() -> None:
    """Print the list if asked for, then how often each kind and base is in the set."""
    parser = argparse.ArgumentParser(description="List the planted mistakes.")
    parser.add_argument("--list", action="store_true", help="compute and list what each changes")
    parser.add_argument("--seed", type=int, help="draw another set")
    parser.add_argument("--only", default="", help="names with this text in them")
    parser.add_argument("--diff", action="store_true", help="show the changed lines in the list")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = sealed() if given.seed is None else mutants(given.seed)
    found = [x for x in found if given.only in x.name]
    if given.list:
        listed(found, given.diff)
    print(counted("kind", (kind for x in found for kind in x.kinds)), end="\n\n")
    print(counted("base", (x.base for x in found)), end="\n\n")
    pairs = sum(len(x.kinds) == 2 for x in found)
    print(f"{len(found)} mutants: {len(found) - pairs} single, {pairs} pairs")


if __name__ == "__main__":
    main()
