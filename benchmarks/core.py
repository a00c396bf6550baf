"""Measure attention against PyTorch's own and write the tables of docs/benchmarks.md.

    python benchmarks/core.py [--quick] [--only NAME …] [--out FILE.md] [--threads 2]

All competitors run in turn in one process, in an order shuffled by a fixed seed; ratios are taken
round by round. Memory is the peak of a fresh process above its level before the call (Linux).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import costs
import products
import torch
from report import Section, Settings, facts, table

SECTIONS: dict[str, Callable[[Settings], Section]] = {
    "fused": products.fused,
    "leaves": products.leaves,
    "sparse": products.sparse,
    "statistics": costs.statistics,
    "small": costs.small,
    "starting": costs.starting,
    "long": products.long,
}


def main() -> None:
    """Run the sections asked for, print each as it is ready, and the summary last."""
    given = _arguments()
    torch.set_num_threads(given.threads)
    settings = Settings(given.quick, given.threads)
    header = facts() + (" Tiny sizes: a trial of the script." if given.quick else "")
    print(header, flush=True)
    found: list[Section] = []
    for name in given.only:
        start = time.perf_counter()
        section = SECTIONS[name](settings)
        found.append(section)
        print(f"\n{_chapter(section)}", flush=True)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
        if given.out:
            chapters = "\n\n".join(map(_chapter, found))
            given.out.write_text(f"{header}\n\n{_summary(found)}\n\n{chapters}\n")
    print(f"\n{_summary(found)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure attention against PyTorch's own.")
    names = list(SECTIONS)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=names,
        default=names,
        metavar="NAME",
        help=f"sections to run: {', '.join(names)}",
    )
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="also write the tables here")
    parser.add_argument("--threads", type=int, default=2, help="threads of PyTorch (2)")
    return parser.parse_args()


def _summary(found: list[Section]) -> str:
    rows = [(x.title, x.goal, x.measured, x.reached) for x in found]
    return table(["what", "goal", "measured", "reached"], rows)


def _chapter(section: Section) -> str:
    title = section.title[0].upper() + section.title[1:]
    return f"### {title}\n\n{section.body}"


if __name__ == "__main__":
    main()
