"""What an examination says: printed, as JSON, as JUnit XML, and as a page."""

from __future__ import annotations

import json
import os
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

from intently.checker.properties.trial import Property
from intently.checker.report.finding import MORE, Finding, alike, places

WIDTH = 100
"""Columns of a printed report."""
MARKS = {True: "✓", False: "✗", None: "–"}


@dataclass(frozen=True)
class Report:
    """What was understood and found of something that attends.

    ``ok`` is False if there is a mistake; hazards, conventions and what is by design leave it True.
    It is None if something was not measured: ``unmeasured`` says what, where and why.
    """

    understood: str
    computes: tuple[str, ...]
    findings: tuple[Finding, ...]
    properties: tuple[Property, ...]
    name: str = "attention"
    unmeasured: tuple[str, ...] = ()

    @property
    def ok(self) -> bool | None:
        """Whether no mistake was found; None if none was, and not everything was measured."""
        return False if self.mistakes else None if self.reasons else True

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why not everything was measured; empty if it was."""
        return self.unmeasured or (() if self.computes else ("no attention was seen inside",))

    @property
    def mistakes(self) -> tuple[Finding, ...]:
        """What is wrong."""
        return tuple(x for x in self.findings if x.kind == "mistake")

    @property
    def hazards(self) -> tuple[Finding, ...]:
        """What is right in itself, and wrong in a likely use."""
        return tuple(x for x in self.findings if x.kind == "hazard")

    @property
    def verdict(self) -> str:
        """The result in one line."""
        counts = (len(self.mistakes), "mistake"), (len(self.hazards), "hazard")
        said = ", ".join(f"{n} {noun}{'s' * (n > 1)}" for n, noun in counts if n)
        if self.mistakes:
            return f"{said}: {', '.join(dict.fromkeys(x.name for x in self.mistakes))}"
        if self.reasons:
            first, *others = self.reasons
            return f"not measured: {first}" + (f" (and {len(others)} more)" if others else "")
        return f"no mistake found; {said}" if said else "no mistake found"

    def json(self) -> str:
        """The report as JSON, with the title and the cure of each finding."""
        found = {"ok": self.ok, "verdict": self.verdict, **asdict(self)}
        for told, finding in zip(found["findings"], self.findings):
            told |= {"title": finding.title, "cure": finding.cure}
        return json.dumps(found, ensure_ascii=False, indent=1)

    def junit(self, *, allow_unmeasured: bool = False) -> str:
        """The report as JUnit XML: a test case for each property and each mistake.

        One of them fails if ``ok`` is None, unless ``allow_unmeasured``.
        """
        cases = list(self._cases(allow_unmeasured))
        n = Counter(outcome for _, outcome, _ in cases)
        told = {"tests": len(cases), "failures": n["failure"], "errors": 0, "skipped": n["skipped"]}
        counts = {name: str(count) for name, count in told.items()}
        suite = ElementTree.Element("testsuite", {"name": f"intently check {self.name}"} | counts)
        for name, outcome, said in cases:
            case = ElementTree.SubElement(suite, "testcase", classname=self.name, name=name)
            if outcome == "failure":
                ElementTree.SubElement(case, outcome, message=said.split("\n")[0]).text = said
            elif outcome == "skipped":
                ElementTree.SubElement(case, outcome, message=said)
            elif said:
                ElementTree.SubElement(case, "system-out").text = said
        ElementTree.indent(suite)
        return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"

    def _cases(self, allow_unmeasured: bool) -> Iterator[tuple[str, str, str]]:
        """Each test case: its name, "passed", "skipped" or "failure", and what it says."""
        told = {f for p in self.properties for f in p.findings}
        for p in self.properties:
            harmless = p.findings and set(self.hazards).issuperset(p.findings)
            broken = "passed" if harmless else "failure"
            yield p.name, {True: "passed", False: broken, None: "skipped"}[p.holds], p.said
        inside = [f for f in self.mistakes if f not in told]
        for f in inside:
            yield f.name, "failure", "\n".join(_paragraphs(f))
        if self.computes and not inside:
            yield "what it computes", "passed", "\n".join(self.computes)
        for n, reason in enumerate(self.reasons, 1):
            yield f"not measured {n}", "skipped", reason
        if self.ok is None and not allow_unmeasured:
            yield "measured", "failure", f"{self.verdict}\nwhat to do: {MORE}"

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as one HTML file that needs no network, and return its path."""
        from intently.checker.report.page import write

        return write(self, path)

    def __str__(self) -> str:
        parts = [[self.understood]]
        if self.computes:
            parts.append(["computes", *(f"  {x}" for x in self.computes)])
        parts.append(["properties", *_listed(self.properties)])
        parts += [_paragraphs(*x) for x in alike(self.findings)]
        if self.reasons:
            why = (f"  {MARKS[None]} {x}" for x in self.reasons)
            parts.append(["not measured", *why, f"  what to do: {MORE}"])
        return "\n\n".join("\n".join(map(_wrapped, x)) for x in [*parts, [self.verdict]])


def _listed(properties: Sequence[Property]) -> list[str]:
    """The properties: what holds and what does not apply in a line each, then what is broken."""
    unheld = (p for p in properties if p.holds is None)
    same = alike(unheld, lambda p: p.said or p.name)  # what raises the same is told once
    names = [(" and ".join(p.name for p in x), x[0].said) for x in same]
    idle = [f"{name} ({said})" if said else name for name, said in names]
    held = [p.name for p in properties if p.holds]
    lines = [f"  {MARKS[x]} {', '.join(y)}" for x, y in ((True, held), (None, idle)) if y]
    notes = [p for p in properties if p.said and p.holds is not None]
    return lines + [f"  {MARKS[p.holds]} {p.name}: {p.said}" for p in notes]


def _paragraphs(x: Finding, *others: Finding) -> list[str]:
    """A finding with the places of others like it, its smallest example, and the cure."""
    told = x.cure if x.kind in ("mistake", "hazard") else ""
    below = (("example", x.example), ("cure", told))
    lines = [f"  {what}: {said}" for what, said in below if said]
    return [str(replace(x, where=places((x, *others)))), *lines]


def _wrapped(line: str) -> str:
    indent = " " * (4 + len(line) - len(line.lstrip()))
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
