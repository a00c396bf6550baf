"""What an examination says."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from intently.examiner.finding import Finding
from intently.examiner.properties import Property


@dataclass(frozen=True)
class Report:
    """What was understood and found of something that attends.

    ``ok`` is False if there is a mistake; hazards, conventions and what is by design leave it True.
    """

    understood: str
    computes: tuple[str, ...]
    findings: tuple[Finding, ...]
    properties: tuple[Property, ...]

    @property
    def ok(self) -> bool:
        """Whether no mistake was found."""
        return not self.mistakes

    @property
    def mistakes(self) -> tuple[Finding, ...]:
        """What is wrong."""
        return tuple(x for x in self.findings if x.kind == "mistake")

    @property
    def hazards(self) -> tuple[Finding, ...]:
        """What is right in itself, and wrong in a likely use."""
        return tuple(x for x in self.findings if x.kind == "hazard")

    def json(self) -> str:
        """The report as JSON."""
        found = asdict(self)
        found["ok"] = self.ok
        return json.dumps(found, ensure_ascii=False, indent=1)

    def __str__(self) -> str:
        lines = [self.understood, *(f"computes: {x}" for x in self.computes)]
        for x in self.properties:
            mark = {True: "✓", False: "✗", None: "–"}[x.holds]
            lines.append(f"{mark} {x.name}" + (f": {x.said}" if x.said else ""))
        lines += [str(x) for x in self.findings]
        lines.append("no mistake found" if self.ok else f"{len(self.mistakes)} mistakes")
        return "\n".join(lines)
