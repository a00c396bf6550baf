"""The examiner over planted mistakes: each mutant, and its base, which is right."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.checking.planted import Mutant, mutants, sealed
from benchmarks.checking.planted.kinds import ALIKE

NAMES: dict[str, tuple[str, ...]] = {
    "no-scale": ("no-scale",), "scale-by-d": ("scale-one-over-d",),
    "scaled-twice": ("scale-one-over-d",), "scale-by-width": ("scale-model-width",),
    "like-scale": ("other-scale", "no-scale", "scale-one-over-d", "scale-model-width"),
    "mask-ahead-by-one": ("causal-off-by-one",), "mask-behind-by-one": ("causal-off-by-one",),
    "mask-added-as-number": ("mask-boolean-added",), "mask-on-query-axis": ("mask-on-queries",),
    "mask-head-order": ("mask-of-other-rows",), "mask-batch-rows": ("mask-of-other-rows",),
    "window-left-off-by-one": ("window-off-by-one",),
    "window-right-off-by-one": ("window-off-by-one",),
    "padding-attended-in-cross": ("padding-attended",),
    "nan-for-empty-row": ("nan-without-keys",), "mean-for-empty-row": ("mean-without-keys",),
    "heads-split-by-reshape": ("split-by-reshape",),
    "heads-merged-by-reshape": ("merged-by-reshape",),
    "alibi-sign": ("bias-sign",), "alibi-missing": ("bias-missing",),
    "alibi-offset-lost": ("bias-offset-lost",),
    "bias-missing": ("projection-bias-missing",), "alibi-slopes": ("bias-slopes",),
    "mask-in-one-back-end": ("mask-in-one-path", "mask-top-left", "mask-in-cache"),
    "mask-dropped-with-dropout": ("mask-in-one-path",),
    "mask-dropped-with-weights": ("mask-in-one-path",),
    "bias-in-one-back-end": ("bias-in-one-path",),
    "softcap-in-one-back-end": ("softcap-in-one-path",),
    "sinks-in-one-back-end": ("sinks-in-one-path",),
    "mask-twice": ("bias-twice",),
    "mask-missing": ("window-missing",),  # where the window is all there is of the mask
    "window-off-in-cache": ("window-off-by-one", "window-missing"),
    "cache-rolled-early": ("window-off-by-one",),
    "leak-by-convolution": ("leak-later",), "leak-by-norm": ("leak-later",),
    "leak-by-mean": ("leak-later",),
}  # fmt: skip
"""The examiner's names for a planted kind, where they differ from its slug."""


def right(kind: str, found: set[str]) -> bool:
    """Whether a planted kind, or one that cannot be told from it, was named."""
    kinds = {kind}.union(*(group for group in ALIKE if kind in group))
    return any(name in found for k in kinds for name in (*NAMES.get(k, ()), k))


def tasks(given: Any) -> Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]:
    """A row of each mutant, and what examines it."""
    for mutant in sealed() if given.seed is None else mutants(given.seed):
        row = {"name": mutant.name, "base": mutant.base, "kinds": mutant.kinds}
        yield row, partial(examined, mutant)


def examined(mutant: Mutant) -> dict[str, Any]:
    """Examine a mutant and its base."""
    from intently.checker import check

    row: dict[str, Any] = {"equivalent": mutant.equivalent, "unseen": mutant.unseen}
    for name, make in (("found", mutant.make), ("false", mutant.correct)):
        start = time.perf_counter()
        try:
            report = check(make(), **mutant.arguments)
            told = report.mistakes if name == "false" else (*report.mistakes, *report.hazards)
            row[name] = [f.name for f in told]
            row[f"{name} said"] = [str(f)[:160] for f in report.findings]
            row[f"{name} computes"] = [x[:160] for x in report.computes]
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            row[f"{name} error"] = f"{type(error).__name__}: {error} ({at.name}:{at.lineno})"[:300]
        row[f"{name} s"] = round(time.perf_counter() - start, 1)
    return row


def line(row: dict[str, Any]) -> str:
    """What was found of one, in a line."""
    return f"{row['name']}: {row.get('found', row.get('error'))}"


def table(rows: list[dict[str, Any]]) -> str:
    """How many were found, how many named rightly, and how many bases were called wrong."""
    real = [r for r in rows if not r["equivalent"]]
    found = [r for r in real if r.get("found")]
    named = [r for r in real if _named(r)]
    false = [r for r in rows if r.get("false")]
    some = [k for r in real for k in r["kinds"] if k not in r["unseen"]]
    missed = Counter(
        k for r in real for k in r["kinds"]
        if k not in r["unseen"] and not right(k, set(r.get("found", ())))
    )  # fmt: skip
    lines = [
        f"{len(real)} mutants that differ: {len(found)} found ({len(found) / len(real):.1%}), "
        f"{len(named)} with every mistake named ({len(named) / len(real):.1%}); "
        f"{len(some) - sum(missed.values())} of {len(some)} mistakes named; "
        f"{len(false)} of {len(rows)} correct ones called wrong",
        "not named: " + ", ".join(f"{k} {n}" for k, n in missed.most_common()),
    ]
    return "\n".join(lines)


def _named(row: dict[str, Any]) -> bool:
    kinds = [k for k in row["kinds"] if k not in row["unseen"]]
    return bool(row.get("found")) and all(right(k, set(row["found"])) for k in kinds)


def listed(seed: int | None, only: list[str] | None) -> None:
    """Print what each mutant changes, relative and in float64, and how often each kind is planted.

    ∞ stands for NaN, another shape, or an error. `equivalent` mutants differ in nothing that a user
    can observe; `unseen` kinds have no effect beside the other mistake.
    """
    every = sealed() if seed is None else mutants(seed)
    chosen = [x for x in every if not only or any(text in x.name for text in only)]
    print("| name | base | kinds | equivalent | difference | unseen |\n|---|---|---|---|--:|---|")
    for mutant in chosen:
        kinds, unseen = ", ".join(mutant.kinds), ", ".join(mutant.unseen)
        same = "yes" if mutant.equivalent else ""
        cells = f"{mutant.name} | {mutant.base} | {kinds} | {same} | {mutant.difference:.1e}"
        print(f"| {cells} | {unseen} |\n\n{mutant.diff}\n", flush=True)
    counts = Counter(kind for mutant in chosen for kind in mutant.kinds)
    print("\n".join(f"{kind}: {n}" for kind, n in sorted(counts.items())))
