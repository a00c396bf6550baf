"""The examiner over attention mistakes that shipped, and over the releases that mended them."""

from __future__ import annotations

import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

import intently as it
from benchmarks.checking.wild import PROGRAMS
from benchmarks.checking.wild.program import HOME, Program, install

Row = dict[str, Any]


def tasks(given: Any) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """A row of each case, affected and mended, and what examines it, or proves that it is wrong."""
    work = proved if given.prove else examined
    for name, program in sorted(PROGRAMS.items()):
        for variant, folders in program.needs.items():
            row = {"name": f"{name} ({variant})", "case": name, "variant": variant}
            if all((HOME / x).is_dir() for x in folders):
                yield row, partial(released, work, program, variant)
            else:
                print(f"{row['name']} is not installed: --prepare", file=sys.stderr)


def prepare() -> None:
    """Install all releases that are not there yet."""
    install(
        {x for program in PROGRAMS.values() for needed in program.needs.values() for x in needed}
    )


def released(work: Callable[[Program], Row], program: Program, variant: str) -> Row:
    """A row with the release of a case on the path of this process."""
    os.environ |= {"WILD_VARIANT": variant, "KERAS_BACKEND": "torch"}
    warnings.filterwarnings("ignore")
    sys.path[:0] = [str(HOME / x) for x in program.needs[variant]]
    with torch.no_grad():
        return work(program)


def stated(intent: dict[str, Any]) -> dict[str, Any]:
    """What a case says of its intent, as arguments of `check`."""
    values = {n: getattr(it, n) for n in it.__all__}
    return {n: eval(x, values) if n in ("mask", "bias") else x for n, x in intent.items()}


def proved(program: Program) -> Row:
    """Whether the mistake shows."""
    shows, size = program.shows(program.make(), program.inputs())
    return {"shows": shows, "size": size}


def examined(program: Program) -> Row:
    """What `check` says of the adapter, and of the library's own module."""
    row: Row = {"expected": program.names, "kind": program.kind}
    subjects = {"adapter": program.make()}
    if subjects["adapter"].m is not None:
        subjects["module"] = program.make().m
    given = {"inputs": program.inputs(), **stated(program.intent)}
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


def line(row: Row) -> str:
    """What was said of one, in a line."""
    return f"{row['name']}: { {n: x for n, x in row.items() if not n.endswith('said')} }"


def found(row: Row) -> bool:
    """Whether anything of the expected kind was reported of an adapter."""
    return bool(row.get("adapter mistakes" if row["kind"] == "mistake" else "adapter"))


def named(row: Row) -> bool:
    """Whether a right name is among the findings."""
    return found(row) and bool({*row["expected"]} & {*row["adapter"]})


def table(rows: Iterable[Row]) -> str:
    """A line for each case and variant, and totals."""
    rows = list(rows)
    if any("shows" in row for row in rows):
        return "\n".join(f"{row['name']}: {row}" for row in rows)
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
