"""Systems that are trained in seconds."""

from __future__ import annotations

from collections.abc import Iterable

from intently.experiments.comparison import System

TINY = {
    **{"width": 16, "steps": 4, "warmup": 1, "batch_tokens": 200, "threads": 1},
    **{"save_every": 2, "evaluate_every": 4},
}


def tiny(entries: Iterable[System]) -> list[System]:
    transformer = {"inner": 16, "heads": 2}
    return [e.with_flags(**TINY, **(transformer if "Trans" in e.label else {})) for e in entries]
