"""Measure attention against PyTorch's own and write the tables of docs/benchmarks.md.

    python benchmarks/core.py [--quick] [--only NAME …] [--out FILE.md] [--threads 2]

All competitors run in turn in one process, in an order shuffled by a fixed seed; ratios are taken
round by round. Memory is the peak of a fresh process above its level before the call (Linux).
"""

from __future__ import annotations

from collections.abc import Callable

import costs
import native
import products
from report import Section, Settings, arguments, run

SECTIONS: dict[str, Callable[[Settings], Section]] = {
    "fused": products.fused,
    "leaves": products.leaves,
    "sparse": products.sparse,
    "statistics": costs.statistics,
    "small": costs.small,
    "starting": costs.starting,
    "long": products.long,
    **native.PARTS,
}


if __name__ == "__main__":
    run(arguments("Measure attention against PyTorch's own.", SECTIONS).parse_args(), SECTIONS)
