"""`Coverage`: what a watch saw and verified, and what it did not see, with the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Line:
    """One module: how often it attended, what was verified, and why something was not."""

    name: str
    source: str
    calls: int
    verified: bool | None
    why: str | None = None


@dataclass
class Coverage:
    """Lines of what was seen; ``unseen`` says of other modules why they were not."""

    seen: list[Line] = field(default_factory=list)
    unseen: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Say something about the whole, once."""
        if text not in self.notes:
            self.notes.append(text)

    def missing(self, name: str) -> str | None:
        """Why a module was not seen."""
        return self.unseen.get(name)

    def of(self, entries: Sequence[Any]) -> Coverage:
        """The same, with lines for some entries."""
        lines: dict[str, Line] = {}
        for entry in entries:
            line = lines.setdefault(entry.name, Line(entry.name, entry.source, 0, True))
            line.calls += 1
            if entry.verified is not True and line.verified is not False:
                line.verified, line.why = entry.verified, entry.why
        return Coverage(list(lines.values()), dict(self.unseen), list(self.notes))

    def __str__(self) -> str:
        said = {True: "verified", False: "UNVERIFIED", None: "not compared"}
        rows = [
            (line.name, f"{line.calls} call{'s' * (line.calls != 1)}", line.source,
             said[line.verified] + (f": {line.why}" if line.why else ""))
            for line in self.seen
        ]  # fmt: skip
        rows += [(name, "not seen", "", why) for name, why in self.unseen.items()]
        widths = [max((len(row[n]) for row in rows), default=0) for n in range(3)]
        lines = [
            "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths)), row[3]]) for row in rows
        ]
        return "\n".join([*lines, *self.notes]) or "No call of an attention function was seen."
