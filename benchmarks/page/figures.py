"""Measure the figures: a long head drawn by pooling, and the heads of a model.

python benchmarks/figures.py [--quick] [--out FILE.md] [--threads 2]
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import measure
import torch
from report import READING, Section, Settings, arguments, reached, run, table

import intently as it

T, D = 16384, 64
DRAWN = 2.0
"""Seconds at most for a head of T tokens, from queries and keys to the file."""


def drawn(settings: Settings) -> Section:
    """Heatmaps of one long head under several masks, written as PNG."""
    t = 512 if settings.quick else T
    generator = torch.Generator().manual_seed(measure.SEED)
    q, k = (torch.randn(t, D, generator=generator) for _ in range(2))
    causal = it.causal()
    cases: dict[str, it.LazyMatrix] = {
        "causal": it.attend(q, k, mask=causal),
        "everything": it.attend(q, k),
        "window of 1,024": it.attend(q, k, mask=causal & it.window(1023, 0)),
        "causal, ALiBi": it.attend(q[None], k[None], mask=causal, bias=it.alibi(1))[0],
    }
    lines, misses, medians = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, matrix in cases.items():
            calls = {name: partial(it.show.heatmap, matrix, save=Path(folder) / "head.png")}
            found = measure.spread(measure.rounds(calls, settings.effort(20, 3, 9))[name])
            over = found.median - DRAWN
            short = [f"{over:.2f} s over"] if over > 0 and name == "causal" else []
            misses += short
            medians.append(found.median)
            goal = f"≤ {DRAWN:.0f}" if name == "causal" else "–"
            lines.append([name, found.text(), goal, str(found.n), reached(short)])
    body = f"{t:,} tokens, d = {D}, one head, margins and PNG included; seconds, {READING}.\n\n"
    return Section(
        f"`show.heatmap` of a head of {t:,} tokens",
        f"≤ {DRAWN:.0f} s",
        f"causal {medians[0]:.2f} s, without a mask {medians[1]:.2f} s",
        reached(misses),
        body + table(["mask", "s", "goal", "rounds", "reached"], lines),
    )


if __name__ == "__main__":
    run(arguments("Measure the figures.").parse_args(), {"figures": drawn})
