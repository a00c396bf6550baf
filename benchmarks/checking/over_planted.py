"""Run the examiner over planted mistakes: each mutant and its base, in a process of its own.

python benchmarks/checking_planted.py [--seed N] [--json FILE] [--only TEXT] [--table]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
from isolation import isolated
from planted import KINDS, mutants, sealed
from planted.kinds import ALIKE

SECONDS = 60

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


def one(mutant: Any) -> dict[str, Any]:
    """Examine a mutant and its base."""
    from intently.examiner import check

    row: dict[str, Any] = {}
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


def summary(rows: list[dict[str, Any]]) -> str:
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


def main(given: argparse.Namespace) -> None:
    """Run what is left, and print the summary."""
    torch.set_num_threads(1)
    rows = {}
    if given.json and given.json.exists():
        rows = {r["name"]: r for r in map(json.loads, given.json.read_text().splitlines())}
    if not given.table:
        every = list(sealed() if given.seed is None else mutants(given.seed))
        for n, mutant in enumerate(every, 1):
            if mutant.name in rows or (given.only and given.only not in mutant.name):
                continue
            row = rows[mutant.name] = {
                "name": mutant.name, "base": mutant.base, "kinds": mutant.kinds,
                "equivalent": mutant.equivalent, "unseen": mutant.unseen,
                **isolated(partial(one, mutant), given.seconds),
            }  # fmt: skip
            print(f"{n}/{len(every)} {mutant.name}: {row.get('found')}", file=sys.stderr)
            if given.json:
                with given.json.open("a") as out:
                    out.write(json.dumps(row) + "\n")
            else:
                print(json.dumps(row, indent=1, ensure_ascii=False))
    print(summary(list(rows.values())))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Examine planted mistakes.")
    parser.add_argument("--seed", type=int, help="another set than the sealed one")
    parser.add_argument("--json", type=Path, metavar="FILE.jsonl", help="rows; a run goes on here")
    parser.add_argument("--only", help="names with this text in them")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    assert KINDS
    main(parser.parse_args())
