"""What a section says, and how it is written as Markdown."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.measure import Effort, geometric_mean

NONE = "–"
READING = "median (quartiles)"
"""How a spread is written."""


class Section(NamedTuple):
    """One measured row: its line of the summary, and its own tables."""

    title: str
    goal: str
    measured: str
    reached: str
    body: str


class Settings(NamedTuple):
    """``quick`` shrinks every case to a fraction of a second; ``threads`` of PyTorch."""

    quick: bool
    threads: int

    def effort(self, seconds: float, at_least: int, at_most: int) -> Effort:
        """Return the effort of one case, next to none where quick."""
        return Effort(0.0, 2, 2) if self.quick else Effort(seconds, at_least, at_most)


def reached(misses: list[str]) -> str:
    """Write "yes", or what is not reached and by how much."""
    return "no: " + "; ".join(misses) if misses else "yes"


class Goals:
    """What a section should reach: each measure gets its verdict, and what is missed is kept."""

    def __init__(self) -> None:
        self.misses: list[str] = []

    def at_most(
        self, value: float, goal: float, name: str = "", unit: str = "", digits: int = 2
    ) -> str:
        """Write "yes", or by how much a value is over its goal."""
        return self._told(value - goal, f"{unit} over", name, digits)

    def at_least(
        self, value: float, goal: float, name: str = "", unit: str = "", digits: int = 2
    ) -> str:
        """Write "yes", or how much of its goal a value lacks."""
        return self._told(goal - value, f"{unit} short", name, digits)

    def _told(self, gap: float, words: str, name: str, digits: int) -> str:
        short = [f"{gap:,.{digits}f}{words}"] if gap > 0 else []
        self.misses += [f"{name}: {x}" if name else x for x in short]
        return reached(short)

    @property
    def verdict(self) -> str:
        """Write "yes", or all that is missed."""
        return reached(self.misses)


def against_noise(
    ours: Sequence[float], noise: Sequence[float], goal: float
) -> tuple[str, list[str]]:
    """Compare ratios with those of a call against itself (A/A).

    Return the geometric means and the worst of both in words, and what is missed: ``goal`` by the
    mean, or the worst A/A by single ratios.
    """
    mean, worst, floor = geometric_mean(ours), min(ours), worst_noise(noise)
    misses = [f"mean {goal - mean:.3f} short"] if mean < goal else []
    if worst < floor:
        below = sum(x < floor for x in ours)
        misses.append(f"{below} of {len(ours)} below A/A, by at most {floor - worst:.3f}")
    means = f"geometric mean {mean:.3f} (A/A {geometric_mean(noise):.3f})"
    return f"{means}, worst {worst:.3f} (A/A {floor:.3f})", misses


def worst_noise(noise: Iterable[float]) -> float:
    """Return the smallest of all ratios and their inverses, for either side may stand above."""
    return min(min(x, 1 / x) for x in noise)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def megabytes(n: float) -> str:
    """Bytes in MB (10⁶), for a cell."""
    return f"{n / 1e6:,.1f}" if n < 1e8 else f"{n / 1e6:,.0f}"


def facts() -> str:
    """Return one sentence on what the numbers were measured on."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    cpu = found[1].strip() if found else platform.processor() or platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{cpu}, {torch.get_num_threads()} threads on {os.cpu_count()} cores, {memory:.0f} GiB; "
        f"PyTorch {torch.__version__}, Python {platform.python_version()}, {platform.system()}; "
        f"{datetime.date.today().isoformat()}, load {os.getloadavg()[0]:.1f} at the start."
    )


TRIAL = " Tiny sizes and two rounds: a trial of the script, its numbers mean nothing."


def arguments(description: str, parts: Iterable[str] = ()) -> argparse.ArgumentParser:
    """Return the options that every script has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    if names := list(parts):
        said = f"parts to run: {', '.join(names)}"
        parser.add_argument(
            "--only", nargs="+", choices=names, default=names, metavar="NAME", help=said
        )
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="also write the tables here")
    parser.add_argument("--threads", type=int, default=2, help="threads of PyTorch (2)")
    return parser


def versions(packages: Iterable[str]) -> str:
    """Return one sentence on the packages that are installed."""
    found = []
    for package in sorted(packages):
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return f" Beside it: {', '.join(found)}." if found else ""


def run(
    given: argparse.Namespace,
    parts: Mapping[str, Callable[[Settings], Section | list[Section]]],
    about: str = "",
    together: Callable[[], list[Section]] = list,
) -> None:
    """Run the parts asked for, print each as it is ready, and the summary last.

    ``about`` follows the facts on the machine; the rows of ``together`` lead the summary.
    """
    torch.set_num_threads(given.threads)
    settings, sections = Settings(given.quick, given.threads), []
    header = f"{facts()}{about}{TRIAL if given.quick else ''}"
    print(header, flush=True)
    for name in getattr(given, "only", parts):
        start = time.perf_counter()
        made = parts[name](settings)
        sections += made if isinstance(made, list) else [made]
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
        chapters = "\n\n".join(f"### {x.title}\n\n{x.body}" for x in sections)
        rows = [
            (x.title, x.goal, x.measured, NONE if given.quick else x.reached)
            for x in [*together(), *sections]
        ]
        summary = table(["what", "goal", "measured", "reached"], rows)
        if given.out:
            given.out.write_text(f"{header}\n\n{summary}\n\n{chapters}\n")
        print(f"\n### {sections[-1].title}\n\n{sections[-1].body}", flush=True)
    print(f"\n{summary}")
