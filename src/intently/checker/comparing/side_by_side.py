"""The matrices of two attentions that should be the same, for the findings that tell them apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from intently.checker.examined import Examination
from intently.checker.report.examples import around
from intently.checker.report.finding import Finding


def with_matrices(
    findings: Iterable[Finding], mine: Examination, theirs: Examination
) -> list[Finding]:
    """The findings, each with the weights of both at its place, where they differ."""
    pairs = {a.where: (a, b) for a, b in zip(mine.attentions, theirs.attentions)}

    def drawn(x: Finding) -> Finding:
        if x.kind != "mistake" or x.example is not None or x.where not in pairs:
            return x
        a, b = (y.attention.weights for y in pairs[x.where])
        if a.shape != b.shape:
            return x
        cell, example = around(x.cell, b, a)
        return x if example is None else replace(x, cell=cell, example=example)

    return [drawn(x) for x in findings]
