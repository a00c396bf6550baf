"""`Coverage`: what a watch saw and verified, and what it did not see, with the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

NOTHING = "No call of an attention function was seen."


@dataclass
class Line:
    """One module: how often it attended, what was verified, and why something was not.

    ``compared`` of all its ``rows`` were compared, of which no more is known where they are 0.
    ``lost`` says of how many calls why they cannot be read any more.
    """

    name: str
    source: str
    calls: int
    verified: bool | None
    why: str | None = None
    compared: int = 0
    rows: int = 0
    lost: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        said = {True: "verified", False: "UNVERIFIED", None: "not compared"}[self.verified]
        if self.verified and self.compared:
            said += f" on {self.compared:,} of {self.rows:,} rows"
        if self.why:
            said += f": {self.why}"
        if self.lost:
            some = "" if self.calls == 1 else f"{len(self.lost)} of {self.calls} "
            said += f"; {some}cannot be read any more: {self.lost[0]}"
        return said


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
            line.compared += min(entry.compared, entry.shape[-2])
            line.rows += entry.shape[-2]
            lost = entry.lost()
            if lost is not None:
                line.lost.append(lost)
            if entry.verified is not True and line.verified is not False:
                line.verified, line.why = entry.verified, entry.why
        return Coverage(list(lines.values()), dict(self.unseen), list(self.notes))

    def __str__(self) -> str:
        rows = [
            (line.name, f"{line.calls} call{'s' * (line.calls != 1)}", line.source, str(line))
            for line in self.seen
        ]
        rows += [(name, "not seen", "", why) for name, why in self.unseen.items()]
        widths = [max((len(row[n]) for row in rows), default=0) for n in range(3)]
        lines = [
            "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths)), row[3]]) for row in rows
        ]
        return "\n".join([*(lines or [NOTHING]), *self.notes])
