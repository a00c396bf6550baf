"""Run the examiner over attention mistakes that shipped, and over the releases that mended them.

python benchmarks/checking_wild.py [--prepare | --prove] [--json FILE] [--only TEXT] [--said]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from isolation import Row, isolated
from wild.releases import HOME, RELEASES, prepare

import intently as it

CASES = Path(__file__).parent / "wild" / "cases"
SECONDS = 120


def case(name: str) -> Any:
    """The module of a case."""
    return importlib.import_module(f"wild.cases.{name}")


def stated(intent: dict[str, Any]) -> dict[str, Any]:
    """What a case says of its intent, as arguments of `check`."""
    values = {n: getattr(it, n) for n in it.__all__}
    return {n: eval(x, values) if n in ("mask", "bias") else x for n, x in intent.items()}


def proved(name: str, variant: str) -> Row:
    """Whether the mistake shows."""
    shows, size = case(name).wrong()
    return {"shows": shows, "size": size}


def examined(name: str, variant: str) -> Row:
    """What `check` says of the adapter, and of the library's own module."""
    program, row = case(name), {}
    row["expected"], row["kind"] = program.meta["name"], program.meta["kind"]
    subjects = {"adapter": program.make()}
    if subjects["adapter"].m is not None:
        subjects["module"] = program.make().m
    given = {"inputs": program.inputs(), **stated(program.meta["intent"])}
    for how, subject in subjects.items():
        start = time.perf_counter()
        try:
            report = it.check(subject, **(given if how == "adapter" else alone(given)))
            row[how] = [x.name for x in report.findings if x.kind in ("mistake", "hazard")]
            row[f"{how} mistakes"] = [x.name for x in report.mistakes]
            row[f"{how} said"] = str(report)
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            row[f"{how} error"] = f"{type(error).__name__}: {error} ({at.name}:{at.lineno})"[:400]
        row[f"{how} s"] = round(time.perf_counter() - start, 1)
    return row


def alone(given: dict[str, Any]) -> dict[str, Any]:
    """What can be stated of a module whose arguments are not the adapter's: its mask."""
    return {n: x for n, x in given.items() if n in ("mask", "bias")}


def released(work: Callable[[str, str], Row], name: str, variant: str) -> Row:
    """A row with the release of a case on the path of this process."""
    os.environ |= {"WILD_VARIANT": variant, "KERAS_BACKEND": "torch"}
    warnings.filterwarnings("ignore")
    sys.path[:0] = [str(HOME / x) for x in needs(name)[variant]]
    with torch.no_grad():
        return work(name, variant)


def needs(name: str) -> dict[str, tuple[str, ...]]:
    """The releases of a case, for ``affected`` and ``mended``."""
    return case(name).meta["needs"]


# --- the table ----------------------------------------------------------------------------------


def found(row: Row) -> bool:
    """Whether anything of the expected kind was reported of an adapter."""
    return bool(row.get("adapter mistakes" if row["kind"] == "mistake" else "adapter"))


def named(row: Row) -> bool:
    """Whether a right name is among the findings."""
    return found(row) and bool({*row["expected"]} & {*row["adapter"]})


def table(rows: Iterable[Row]) -> str:
    """A line for each case and variant, and totals."""
    rows = list(rows)
    out = ["| case | release | said of the adapter | said of the module | right | s |"]
    out.append("|---|---|---|---|---|--:|")
    for row in rows:
        right = not row.get("adapter mistakes")
        if row["variant"] == "affected":
            right = named(row) if "expected" in row else False
        said = [_said(row, how) for how in ("adapter", "module")]
        seconds = sum(row.get(f"{how} s", 0.0) for how in ("adapter", "module"))
        mark = "✓" if right and "error" not in row and "adapter error" not in row else "✗"
        out.append(
            f"| {row['case']} | {row['variant']} | {said[0]} | {said[1]} | {mark} | {seconds:.1f} |"
        )
    affected = [x for x in rows if x["variant"] == "affected"]
    mended = [x for x in rows if x["variant"] == "mended"]
    some = [x for x in affected if "expected" in x]
    out.append(
        f"\n{len(affected)} affected: {sum(map(found, some))} found, {sum(map(named, some))} named "
        f"rightly. {len(mended)} mended: {sum(bool(x.get('adapter mistakes')) for x in mended)} "
        f"called wrong. Not examined: {sum('adapter error' in x or 'error' in x for x in rows)}."
    )
    return "\n".join(out)


def _said(row: Row, how: str) -> str:
    why = row.get("error") or row.get(f"{how} error")
    if why:
        return why.replace("\n", " ")[:60]
    return ", ".join(dict.fromkeys(row[how])) or "nothing" if how in row else ""


def main(given: argparse.Namespace) -> None:
    """Prepare, prove or examine."""
    torch.set_num_threads(1)
    names = sorted(p.stem for p in CASES.glob("[a-z]*.py"))
    chosen = [n for n in names if given.only in n]
    every = [(n, v, needs(n)[v]) for n in chosen for v in needs(n)]
    folders = dict.fromkeys(x for _, _, xs in every for x in xs)
    assert set(folders) <= set(RELEASES)
    if given.prepare:
        prepare(folders)
        return
    rows = []
    for name, variant, folder in every:
        if any(not (HOME / x).is_dir() for x in folder):
            print(f"{name} ({variant}) is not installed: --prepare", file=sys.stderr)
            continue
        work = proved if given.prove else examined
        row = isolated(partial(released, work, name, variant), given.seconds)
        rows.append({"case": name, "variant": variant, **row})
        short = {n: x for n, x in rows[-1].items() if given.said or not n.endswith("said")}
        print(json.dumps(short, ensure_ascii=False), file=sys.stderr, flush=True)
        for how in ("adapter said", "module said") if given.said else ():
            print(f"--- {how}\n{rows[-1].get(how, '')}", file=sys.stderr)
    if given.json:
        given.json.write_text("".join(json.dumps(x, ensure_ascii=False) + "\n" for x in rows))
    if not given.prove:
        print(table(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Examine attention mistakes that shipped.")
    parser.add_argument("--prepare", action="store_true", help="install the releases")
    parser.add_argument("--prove", action="store_true", help="show the mistakes, without check")
    parser.add_argument(
        "--json", type=Path, metavar="FILE.jsonl", help="rows with all that is said"
    )
    parser.add_argument("--only", default="", help="cases with this text in their names")
    parser.add_argument("--said", action="store_true", help="print the reports")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for one case")
    main(parser.parse_args())
