"""`Coverage`: what a watch saw and verified, and what it did not see, with the reasons."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

NOTHING = "No call of an attention function was seen."


def printable(text: str) -> str:
    """Return a text with unprintable characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return rows as lines with aligned columns, columns numbered in ``right`` flush right.

    >>> aligned([("layer", "calls"), ("decoder", "2")], right=[1])
    ['layer    calls', 'decoder      2']
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    fits = [str.rjust if n in right else str.ljust for n in range(len(widths))]
    lines = ((fit(cell, w) for fit, cell, w in zip(fits, row, widths)) for row in rows)
    return ["  ".join(cells).rstrip() for cells in lines]


@dataclass
class Line:
    """One module: how often it attended, and whether that was verified; if not, why.

    ``compared`` of its ``rows`` were compared; 0 if unknown. ``lost`` gives the reason for each
    call that cannot be read any more.
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
    """A line for each module that was seen; ``unseen`` says why others were not."""

    seen: list[Line] = field(default_factory=list)
    unseen: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a note about the whole, once."""
        if text not in self.notes:
            self.notes.append(text)

    def of(self, entries: Sequence[Any]) -> Coverage:
        """The same, with lines for these entries."""
        lines: dict[str, Line] = {}
        for entry in entries:
            line = lines.setdefault(entry.name, Line(entry.name, entry.source, 0, True))
            line.calls += 1
            line.compared += min(entry.compared, entry.shape[-2])
            line.rows += entry.shape[-2]
            line.lost += filter(None, [entry.lost()])
            if entry.verified is not True and line.verified is not False:
                line.verified, line.why = entry.verified, entry.why
        return Coverage(list(lines.values()), dict(self.unseen), list(self.notes))

    def __str__(self) -> str:
        rows = [
            (line.name, f"{line.calls} call{'s' * (line.calls != 1)}", line.source, str(line))
            for line in self.seen
        ]
        rows += [(name, "not seen", "", why) for name, why in self.unseen.items()]
        return "\n".join([*(aligned(rows) or [NOTHING]), *self.notes])
