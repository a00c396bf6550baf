"""Measure how much attention `it.watch` sees of models that nobody here wrote.

    python -m benchmarks.breadth [--fast] [--only PATTERN …] [--out FILE.md] [--json FILE.jsonl]

Every model type of transformers' auto classes, every model and attention processor of diffusers,
x-transformers' options, PyTorch's and Keras' layers and attention written by hand are built tiny,
those of transformers in half precision, too. Each runs unwatched, watched, and watched with
``deep=True``; the softmaxes that really ran are recorded by a dispatch mode of its own
(`truth`) and compared (`compare`). Each family runs in a process of its own. With
``--json`` an interrupted run goes on where it stopped; ``--debug`` runs the families that are asked
for in this process, with all reasons.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import json
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from benchmarks import measure, report
from benchmarks.breadth import libraries, of_transformers
from benchmarks.breadth.compare import RIGHT, shortened
from benchmarks.breadth.run import NO_ATTENTION, NOT_BUILT, VERDICTS, WORST, Row, measured, told

SECONDS = 60
CHECKED = ("verified", "not compared", "refused")
MEMORY = 8 * 2**30

FAST = (
    "bert", "gpt2", "llama", "t5", "bart", "whisper", "vit", "clip", "deberta-v2", "xlnet",
    "bloom", "gptj", "gpt_neo", "swin", "longformer", "big_bird", "led", "mixtral",
    "gemma3_text", "qwen2", "mamba", "wav2vec2", "opt", "falcon", "blip", "detr", "gpt_oss",
)  # fmt: skip
"""Families of transformers in the fast part, beside all of `libraries.FAST`."""
FAST_HALF = ("bert", "llama", "t5", "gpt_oss")
"""Those that run in half precision there; elsewhere all do."""


def families() -> dict[str, list[str]]:
    """The names of all families, by library."""
    return {"transformers": of_transformers.families(), **libraries.families()}


def fast() -> list[tuple[str, str]]:
    """The fixed list of the fast part: (library, family)."""
    return [("transformers", x) for x in FAST] + list(libraries.FAST)


def run(
    library: str, family: str, after: Callable[[Row], None] = lambda row: None, fast: bool = False
) -> Row:
    """Measure a family in this process; the row is handed over after each mode."""
    start = time.perf_counter()
    row = Row(family, library)
    half = not fast or family in FAST_HALF
    ours = functools.partial(of_transformers.ways, half=half)
    ways = ours if library == "transformers" else libraries.ways(library)
    try:
        measured(row, ways(family), after)
    except Exception as error:
        row.failed["build"] = told(error)
    row.seconds = round(time.perf_counter() - start, 2)
    return row


# --- processes ----------------------------------------------------------------------------------


def isolated(library: str, family: str, seconds: float = SECONDS, fast: bool = False) -> Row:
    """Measure a family in a forked process, within limits of time and memory.

    The child tells its row after every mode, so that a hang or crash loses only the mode it is in.
    """
    start = time.perf_counter()
    work = functools.partial(_limited, library, family, fast)
    told, cut_short = measure.isolated(work, seconds)
    row = Row(**told) if told else Row(family, library)
    if cut_short:
        row.failed["process"] = cut_short
    row.seconds = round(time.perf_counter() - start, 2)
    return row


def _limited(library: str, family: str, fast: bool, tell: measure.Tell) -> None:
    """Measure quietly, with limits that hold even if the parent is gone."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (4 * SECONDS, 4 * SECONDS))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    after: Callable[[Row], None] = lambda row: tell(row.json())  # noqa: E731
    after(run(library, family, after, fast))


# --- the table ----------------------------------------------------------------------------------


def markdown(rows: Iterable[Row]) -> str:
    """One line for each family, after the summary."""
    rows = sorted(rows, key=lambda r: (r.library, r.family))
    head = ["family", "library", "class", "modes", "softmaxes", "by default", "deep", "verdict",
            "reason"]  # fmt: skip
    lines = [
        [r.family, r.library, r.kind, str(len(r.modes)), str(r.matrices), _counted(r.default),
         _counted(r.deep), r.verdict, _reason(r)]
        for r in rows
    ]  # fmt: skip
    return f"{summary(rows)}\n\n{report.table(head, lines)}"


def _counted(states: dict[str, str]) -> str:
    found = Counter(states.values())
    return ", ".join(f"{n} {x}" for x, n in found.most_common()) or report.NONE


def _reason(row: Row) -> str:
    """Why a row is not right: of its worst mode, or why it does not run."""
    worst = [m for m, v in row.modes.items() if v == row.verdict]
    found = [why for m in worst for n, why in row.reasons.items() if n.startswith(m)]
    if row.verdict in (RIGHT, NO_ATTENTION):
        found = []
    if not row.modes:
        found = [f"{m}: {why}" for m, why in row.failed.items()]
    return shortened((found or [""])[0], 200).replace("|", "\\|")


def summary(rows: list[Row]) -> str:
    """How many families, and how many of their modes, have each verdict."""
    attend = [r for r in rows if r.verdict != NO_ATTENTION]
    parts = {"all": attend} | {
        name: [r for r in attend if r.library == name] for name in sorted({r.library for r in rows})
    }
    head = ["verdict", *(f"{name} ({len(part)})" for name, part in parts.items())]
    lines = []
    for verdict in VERDICTS:
        found = [sum(r.verdict == verdict for r in part) for part in parts.values()]
        lines.append([verdict, *map(_share, found, map(len, parts.values()))])
    modes = Counter(v for r in attend for v in r.modes.values() if v != NO_ATTENTION)
    every = sum(modes.values())
    said = "; ".join(f"{v} {_share(modes[v], every)}" for v in VERDICTS if modes[v])
    none = len(rows) - len(attend)
    return (
        f"{report.table(head, lines)}\n\nA family counts by the worst of its modes. Of {every} "
        f"modes: {said}. {none} families beside have no attention.\n\n{checks(attend)}"
    )


def checks(rows: Iterable[Row]) -> str:
    """How many calls were verified by default, not compared, or refused, in each precision."""
    found: dict[str, Counter[str]] = {
        name: Counter() for name in ("float32", *of_transformers.PRECISIONS)
    }
    for row in rows:
        for mode, counts in row.checked.items():
            name = mode.rsplit(" ", 1)[-1]
            found[name if name in found else "float32"].update(dict(zip(CHECKED, counts)))
    return "\n".join(
        f"Calls in {name}: {', '.join(f'{_share(n[x], n.total())} {x}' for x in CHECKED)}."
        for name, n in found.items()
        if n.total()
    )


def _share(n: int, of: int) -> str:
    return f"{n} ({100 * n / of:.1f} %)" if n else "0"


# --- the script ---------------------------------------------------------------------------------


def chosen(given: argparse.Namespace) -> list[tuple[str, str]]:
    """The families to run; patterns match the family, or ``library/family``."""
    every = [(library, x) for library, names in families().items() for x in names]
    if given.fast:
        every = [x for x in fast() if x in set(every)]
    if given.only:
        every = [
            x for x in every
            if any(fnmatch.fnmatch(x[1], p) or fnmatch.fnmatch("/".join(x), p) for p in given.only)
        ]  # fmt: skip
    return every


def before(path: Path | None) -> dict[tuple[str, str], Row]:
    """The rows that an interrupted run has left."""
    if path is None or not path.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in path.read_text().splitlines() if line.strip()]
    return {(row.library, row.family): row for row in rows}


def main(given: argparse.Namespace) -> int:
    """Run, print and write; the exit status says whether anything was wrong or changed."""
    torch.set_num_threads(given.threads)
    todo = chosen(given)
    of_transformers.warm()
    rows = before(given.json)
    limited = functools.partial(isolated, seconds=given.seconds, fast=given.fast)
    one: Callable[[str, str], Row] = run if given.debug else limited
    for n, key in enumerate(todo, 1):
        if given.table or (key in rows and not given.debug):
            continue
        row = rows[key] = one(*key)
        print(f"{n}/{len(todo)} {'/'.join(key)}: {row.verdict}, {row.seconds} s", file=sys.stderr)
        if given.debug:
            print(json.dumps(row.json(), indent=1, ensure_ascii=False))
        elif given.json:
            with given.json.open("a") as out:
                out.write(json.dumps(row.json(), ensure_ascii=False) + "\n")
    text = markdown(rows[key] for key in todo if key in rows)
    if given.out:
        given.out.write_text(f"{report.facts()}\n\n{text}\n")
    print(text)
    bad = [r for r in rows.values() if WORST[r.verdict] > WORST[VERDICTS[2]]]
    return int(any(r.verdict != NOT_BUILT for r in bad))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure what watch sees of foreign models.")
    parser.add_argument("--only", nargs="+", metavar="PATTERN", help="families, e.g. 'bert*'")
    parser.add_argument("--fast", action="store_true", help="a fixed list, within two minutes")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="write the table here")
    parser.add_argument("--json", type=Path, metavar="FILE.jsonl", help="rows; a run goes on here")
    parser.add_argument("--table", action="store_true", help="run nothing, write what is there")
    parser.add_argument("--debug", action="store_true", help="in this process, with all reasons")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each family (60)")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch (1)")
    raise SystemExit(main(parser.parse_args()))
