"""The examiner over mistakes that people reported, and drawn ones, each beside its mended twin.

They are asked for by `field dev`, `field sealed`, `field formulas SEED N`, `field layouts SEED N`.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.checking.examining import Row, checked, loaded

HERE, HALVES, DRAWN = "benchmarks.checking.field", ("dev", "sealed"), ("formulas", "layouts")


def tasks(given: Any) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """A row of each program, wrong and right, and what examines it; sealed ones have no names."""
    loaded()
    part, *numbers = given.of
    os.environ |= {"KERAS_BACKEND": "torch", "JAX_PLATFORMS": "cpu"}
    if part in DRAWN:
        seed, n = map(int, numbers)
        found = {f"{part} {seed} {i}": partial(drawn, part, seed, i) for i in range(n)}
    else:
        names = sorted(x.stem for x in (Path(__file__).parent / "field" / part).glob("*.py"))
        found = {x: partial(import_module, f"{HERE}.{part}.{x}") for x in names}
    for name, load in found.items():
        told = name if part != "sealed" else hashlib.sha256(name.encode()).hexdigest()[:8]
        for what in ("wrong", "right"):
            row = {"name": f"{told} ({what})", "what": what}
            yield row, partial(examined, load, what, part == "sealed")


def drawn(part: str, seed: int, i: int) -> SimpleNamespace:
    """One of the cases that a generator draws; each is drawn after those before it."""
    case = import_module(f"{HERE}.generated.{part}").cases(seed, i + 1)[-1]
    return SimpleNamespace(**vars(case), words=case.name)


def examined(load: Callable[[], Any], what: str, sealed: bool) -> Row:
    """What `check` says of a program or its twin: of a sealed one, whether it is right and no more.

    A mistake is found where the verdict is wrong or one of its names is reported, and named where
    one of its names is reported, or where it has none.
    """
    warnings.filterwarnings("ignore")
    program = load()
    torch.manual_seed(0)
    asked = program.asks()
    told = checked(getattr(program, what)(), asked)
    hit = bool({*told.get("found", ())} & {*program.expect})
    good = "missed" if what == "wrong" else "right"
    verdict = {True: good, False: "wrong", None: "not measured"}.get(told.get("ok", "-"), "error")
    if what == "wrong" and (hit or verdict == "wrong"):
        verdict = "named" if hit or not program.expect else "found"
    row = {"verdict": verdict, "s": told["s"]}
    return row if sealed else row | {"expect": program.expect, "words": program.words} | told


def line(row: Row) -> str:
    """What was said of one, in a line."""
    told = row.get("verdict"), row.get("found", ""), row.get("error", "")
    return f"{row['name']}: {' '.join(map(str, told))}"


def table(rows: list[Row]) -> str:
    """How many mistakes were found and named, and how many twins were called right."""
    lines = []
    for what, words in (("wrong", "mistakes"), ("right", "mended twins")):
        some = [r for r in rows if r["what"] == what]
        counts = Counter(r.get("verdict", "error") for r in some)
        told = ", ".join(f"{verdict} {n}" for verdict, n in counts.most_common())
        lines.append(f"{len(some)} {words}: {told}")
    return "\n".join(lines)
