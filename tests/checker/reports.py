"""What tests of the examiner ask of its reports."""

from __future__ import annotations

from intently.checker import Report


def names(report: Report) -> list[str]:
    """Its mistakes and hazards."""
    return [f.name for f in (*report.mistakes, *report.hazards)]


def held(report: Report, name: str) -> bool | None:
    """Whether a property holds."""
    return next(p.holds for p in report.properties if p.name == name)
