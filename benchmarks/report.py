"""What a section says, and how it is written as Markdown."""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from measure import Effort

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
