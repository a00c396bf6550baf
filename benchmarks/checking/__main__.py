"""Measure the examiner: planted mistakes, mistakes that shipped, correct and collected attentions.

    python -m benchmarks.checking [planted wild right] [--only TEXT …] [--json FOLDER]
    python -m benchmarks.checking field dev|sealed|formulas SEED N|layouts SEED N

Each subject is examined in a process of its own. With ``--json`` the rows are written to a folder,
and an interrupted run goes on where it stopped. The wild cases need ``--prepare`` once.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.checking import over_field, over_planted, over_right, over_wild
from benchmarks.checking.examining import Row
from benchmarks.measure import Tell, isolated

PARTS = {"planted": over_planted, "wild": over_wild, "right": over_right, "field": over_field}
"""Each has ``tasks``, pairs of a row and what fills it, and writes the rows as a ``table``."""


def told(work: Callable[[], Row], tell: Tell) -> None:
    """Tell what ``work`` returns, or its error."""
    try:
        tell(work())
    except Exception as error:
        tell({"error": f"{type(error).__name__}: {error}"[:400]})


def rows_of(part: str, given: argparse.Namespace) -> list[Row]:
    """Examine what is left of a part, and return all its rows."""
    file = given.json and given.json / f"{'-'.join([part, *given.of])}.jsonl"
    rows: dict[str, Row] = {}
    if file and file.exists():
        rows = {row["name"]: row for row in map(json.loads, file.read_text().splitlines())}
    tasks = list(PARTS[part].tasks(given))
    for n, (row, work) in enumerate(tasks, 1):
        name = row["name"]
        if name in rows or (given.only and not any(text in name for text in given.only)):
            continue
        filled, cut_short = isolated(partial(told, work), given.seconds)
        rows[name] = row | (filled or {"error": cut_short})
        print(f"{n}/{len(tasks)} {PARTS[part].line(rows[name])}", file=sys.stderr, flush=True)
        if given.said:
            print(json.dumps(rows[name], indent=1, ensure_ascii=False), file=sys.stderr)
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as out:
                out.write(json.dumps(rows[name], ensure_ascii=False) + "\n")
    return list(rows.values())


def main(given: argparse.Namespace) -> None:
    """Prepare, list, or run the parts asked for and print their tables."""
    torch.set_num_threads(1)
    if given.prepare:
        over_wild.prepare()
    elif given.list:
        over_planted.listed(given.seed, given.only)
    else:
        for part in given.parts or ("planted", "wild", "right"):
            start = time.perf_counter()
            table = PARTS[part].table(rows_of(part, given))
            print(f"## {part} ({time.perf_counter() - start:.0f} s)\n\n{table}\n", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the examiner.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="names with one of these in them")
    parser.add_argument("--json", type=Path, metavar="FOLDER", help="rows; a run goes on here")
    parser.add_argument("--said", action="store_true", help="print all that was said")
    parser.add_argument("--seconds", type=float, default=120, help="for each subject (120)")
    parser.add_argument("--seed", type=int, help="planted: another set of mutants")
    parser.add_argument("--list", action="store_true", help="planted: list what each changes")
    parser.add_argument("--prepare", action="store_true", help="wild: install the releases")
    parser.add_argument("--prove", action="store_true", help="wild: show the mistakes alone")
    options = parser.parse_args()
    options.parts, options.of = options.parts[:1], options.parts[1:]
    if options.parts != ["field"]:
        options.parts, options.of = options.parts + options.of, []
    elif options.of[:1] not in (["dev"], ["sealed"], ["formulas"], ["layouts"]):
        parser.error("field takes dev, sealed, formulas SEED N or layouts SEED N")
    if set(options.parts) - set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    main(options)
