"""What an examination finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["mistake", "hazard", "by design", "convention"]


@dataclass(frozen=True)
class Finding:
    """One finding: its ``name`` in the catalogue, and in a sentence what was seen where.

    ``cell`` is the smallest counterexample as (batch row, head, query, key), as far as it has one;
    ``fit`` the relative residual that the explanation leaves.
    """

    name: str
    said: str
    kind: Kind = "mistake"
    where: str = ""
    cell: tuple[int, ...] = ()
    fit: float | None = None

    def __str__(self) -> str:
        at = f"{self.where}: " if self.where else ""
        return f"{self.kind}: {at}{self.said} [{self.name}]"


def merged(findings: list[Finding]) -> tuple[Finding, ...]:
    """Each finding once for each place."""
    out: dict[tuple[str, str], Finding] = {}
    for f in findings:
        out.setdefault((f.name, f.where), f)
    return tuple(out.values())
