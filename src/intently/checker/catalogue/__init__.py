"""The catalogue: every finding that `check` knows by name, what it amounts to, and the cure.

An entry says what the code computes in place of softmax(q kᵀ / √d) v, how the mistake is told from
its neighbours, how to mend it, and where it really happened.
"""

from __future__ import annotations

from intently.checker.catalogue.beside import BESIDE
from intently.checker.catalogue.entry import Entry, Kind
from intently.checker.catalogue.heads import HEADS
from intently.checker.catalogue.masks import MASKS, PADDING
from intently.checker.catalogue.numbers import NUMBERS
from intently.checker.catalogue.positions import POSITIONS
from intently.checker.catalogue.running import CALLS, STEPS, TRAINING
from intently.checker.catalogue.steps import CACHES, LATENT, PATHS, POSITIONED, WIRING
from intently.checker.catalogue.weights import SCALE, SOFTMAX

CHAPTERS: dict[str, dict[str, Entry]] = {
    "Scale": SCALE,
    "Softmax": SOFTMAX,
    "Masks": MASKS,
    "Padding": PADDING | POSITIONED,
    "Heads": HEADS,
    "Wiring": WIRING,
    "Positions": POSITIONS,
    "Step by step": STEPS | CACHES,
    "One path only": PATHS,
    "Training and evaluation": TRAINING | LATENT,
    "Calls": CALLS,
    "Large and short numbers": NUMBERS,
    "Beside a reference": BESIDE,
}
"""The entries by name, in chapters."""

CATALOGUE: dict[str, Entry] = {
    name: entry for chapter in CHAPTERS.values() for name, entry in chapter.items()
}

__all__ = ["CATALOGUE", "CHAPTERS", "Entry", "Kind"]
