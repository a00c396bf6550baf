"""The examiner over attention mistakes that shipped, and over the releases that mended them."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import intently as it
from benchmarks.checking.examining import Row, cells, checked, loaded
from benchmarks.checking.wild import PROGRAMS
from benchmarks.checking.wild.program import HOME, Program, install


def tasks(given: Any) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """A row of each case, affected and mended, and what examines it, or proves that it is wrong."""
    loaded()
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
    install({x for p in PROGRAMS.values() for needed in p.needs.values() for x in needed})


def released(work: Callable[[Program], Row], program: Program, variant: str) -> Row:
    """A row with the release of a case on the path of this process."""
    os.environ |= {"WILD_VARIANT": variant, "KERAS_BACKEND": "torch"}
    warnings.filterwarnings("ignore")
    sys.path[:0] = [str(HOME / x) for x in program.needs[variant]]
    with torch.no_grad():
        return work(program)


def proved(program: Program) -> Row:
    """Whether the mistake shows."""
    shows, size = program.shows(program.build(), program.inputs())
    return {"shows": shows, "size": size}


def examined(program: Program) -> Row:
    """What `check` says of the adapter, and of the library's own module, whose mask is stated."""
    values = {n: getattr(it, n) for n in it.__all__}
    intent = {n: eval(x, values) if isinstance(x, str) else x for n, x in program.intent.items()}
    adapter = program.build()
    row = {"expected": program.names, "kind": program.kind}
    row["adapter"] = checked(adapter, {"inputs": program.inputs(), **intent})
    if adapter.m is not None:
        stated = {n: x for n, x in intent.items() if n in ("mask", "bias")}
        row["module"] = checked(program.build().m, stated)
    return row


def line(row: Row) -> str:
    """What was said of one, in a line."""
    return f"{row['name']}: {row.get('error') or row.get('shows', _said(row))}"


def _said(row: Row) -> list[str]:
    told = (row.get(x, {}) for x in ("adapter", "module"))
    return [x.get("error", ", ".join(dict.fromkeys(x.get("found", ()))))[:60] for x in told]


def found(row: Row) -> bool:
    """Whether anything of the expected kind was reported of an adapter."""
    kind = "mistakes" if row.get("kind") == "mistake" else "found"
    return bool(row.get("adapter", {}).get(kind))


def named(row: Row) -> bool:
    """Whether a right name is among the findings."""
    return found(row) and bool({*row["expected"]} & {*row["adapter"]["found"]})


def table(rows: list[Row]) -> str:
    """A line for each case and variant, and totals."""
    out = ["| case | release | said of the adapter | said of the module |", "|---|---|---|---|"]
    if any("shows" in row for row in rows):
        return "\n".join(line(row) for row in rows)
    out += [cells(row["case"], row["variant"], *_said(row)) for row in rows]
    affected, mended = ([x for x in rows if x["variant"] == v] for v in ("affected", "mended"))
    failed = sum("error" in x or "error" in x["adapter"] for x in rows)
    wrong = sum(bool(x.get("adapter", {}).get("mistakes")) for x in mended)
    out.append(
        f"\n{len(affected)} affected: {sum(map(found, affected))} found, "
        f"{sum(map(named, affected))} named. {len(mended)} mended: {wrong} called wrong. "
        f"Not examined: {failed}."
    )
    return "\n".join(out)
