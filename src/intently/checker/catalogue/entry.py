"""An entry of the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["mistake", "hazard", "by design", "convention"]


@dataclass(frozen=True)
class Entry:
    """One finding by name: its title, formula, tell-tale, cure, and real cases as links.

    ``story`` says what goes wrong and why it goes unnoticed; ``told`` how numbers give it away.
    """

    title: str
    formula: str
    told: str
    cure: str
    cases: tuple[str, ...] = ()
    story: str = ""
    kind: Kind = "mistake"
