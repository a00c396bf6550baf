"""Run the examiner over correct attentions: none may be called wrong.

python benchmarks/checking_right.py [--only TEXT ...] [--json FILE] [--table] [--seconds N]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import torch
from isolation import isolated
from right import Case, cases


def one(case: Case) -> dict[str, Any]:
    """Examine a case: what was understood and computed, and what was found."""
    from intently.errors import ArgumentError
    from intently.examiner import check

    made = case.make()
    start = time.perf_counter()
    row: dict[str, Any] = {"name": case.name, "limit": case.seconds}
    try:
        report = check(made, **case.asked)
    except ArgumentError as error:
        row["refused"] = str(error)[:500]
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        row["error"] = f"{type(error).__name__}: {error} ({at.name}:{at.lineno})"[:500]
    else:
        row |= {
            "understood": report.understood, "computes": list(report.computes),
            "mistakes": [str(x) for x in report.mistakes],
            "others": [str(x) for x in report.findings if x.kind != "mistake"],
            "open": [f"{x.name}: {x.said}" for x in report.properties if x.holds is False],
        }  # fmt: skip
    row["s"] = round(time.perf_counter() - start, 1)
    return row


def measured(row: dict[str, Any]) -> str:
    """What was measured inside, in a few words."""
    if "computes" not in row:
        return row.get("refused") or row.get("error", "")
    return f"{len(_seen(row))} of {len(row['computes'])} attentions measured"


def _seen(row: dict[str, Any]) -> list[str]:
    return [x for x in row["computes"] if "mask: " in x]


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each case, and totals."""
    lines = ["| attention | understood | computes | mistakes | hazards | s |", "|" + "---|" * 6]
    for r in rows:
        wrong = "; ".join(r.get("mistakes", ()))
        hazards = "; ".join(x for x in r.get("others", ()) if x.startswith("hazard"))
        told = (r.get("understood", ""), measured(r), wrong, hazards, str(r.get("s", "")))
        cells = [x.replace("|", "\\|").replace("\n", " ")[:160] for x in (r["name"], *told)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join((*lines, "", summary(rows)))


def summary(rows: list[dict[str, Any]]) -> str:
    """How many were examined, called wrong, refused, slow."""
    done = [r for r in rows if "computes" in r]
    wrong = [r["name"] for r in done if r["mistakes"]]
    slow = [f"{r['name']} {r['s']} s" for r in rows if r.get("s", 0) > r.get("limit", 5)]
    partly = [r["name"] for r in done if len(_seen(r)) < len(r["computes"]) or not r["computes"]]
    lines = [
        f"{len(rows)} correct attentions: {len(done)} examined, {len(wrong)} called wrong, "
        f"{sum('refused' in r for r in rows)} refused with a reason, "
        f"{sum('error' in r for r in rows)} failed, {len(slow)} slower than the limit",
        f"called wrong: {', '.join(wrong)}",
        f"not all of it measured: {', '.join(partly)}",
        f"slow: {', '.join(slow)}",
        f"not examined: {', '.join(r['name'] for r in rows if 'computes' not in r)}",
    ]
    return "\n".join(lines)


def warm() -> None:
    """Import what many cases need, so that forked processes have it."""
    from transformers import GenerationMixin, PreTrainedModel

    assert GenerationMixin and PreTrainedModel


def main(given: argparse.Namespace) -> None:
    """Run what is left, and print the table."""
    torch.set_num_threads(1)
    rows = {}
    if given.json and given.json.exists():
        rows = {r["name"]: r for r in map(json.loads, given.json.read_text().splitlines())}
    every = [] if given.table else list(cases())
    warm()
    for n, case in enumerate(every, 1):
        if given.only and not any(x in case.name for x in given.only):
            continue
        if case.name in rows:
            continue
        row = {"name": case.name, **isolated(partial(one, case), given.seconds)}
        rows[case.name] = row
        said = row.get("mistakes") or row.get("error") or row.get("refused") or "right"
        print(f"{n}/{len(every)} {case.name}: {said} {row.get('s')} s", file=sys.stderr)
        if given.json:
            with given.json.open("a") as out:
                out.write(json.dumps(row) + "\n")
    print(table(list(rows.values())))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", nargs="*", help="names that contain one of these")
    options.add_argument("--json", type=Path, help="a file of rows, which a later run continues")
    options.add_argument("--table", action="store_true", help="print the rows of the file only")
    options.add_argument("--seconds", type=float, default=120)
    main(options.parse_args())
