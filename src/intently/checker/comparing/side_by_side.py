"""The matrices of two attentions that should be the same, for the findings that tell them apart.

Where both have known scores, the weights that were measured stand beside those which the other's
scores give the same queries and keys. Where that is no difference, because the queries or keys
themselves differ, the weights of both in the example stand beside each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor

from intently.checker.comparing.likeness import Whole
from intently.checker.computing.cores import Examined
from intently.checker.computing.measuring import shared
from intently.checker.report.examples import around, formula
from intently.checker.report.finding import Example, Finding


def with_matrices(findings: Iterable[Finding], mine: Whole, theirs: Whole) -> list[Finding]:
    """The findings, each with the weights of both at its place, where they differ."""
    pairs = [(a, b) for a, b in zip(mine.cores, theirs.cores) if a.scores and b.scores]

    def drawn(x: Finding) -> Finding:
        if x.kind != "mistake" or x.example is not None:
            return x
        at = next(((a, b) for a, b in pairs if a.where == x.where), None)
        if at is None:
            return x
        cell, example = _beside(*at, x.cell)
        return x if example is None else replace(x, cell=cell, example=example)

    return [drawn(x) for x in findings]


def _beside(
    a: Examined, b: Examined, cell: tuple[int, ...]
) -> tuple[tuple[int, ...], Example | None]:
    """The smallest example of a difference, if there is one."""
    for right, wrong in (_on_the_same(a, b), _in_the_example(a, b)):
        if right is None or wrong is None or right.shape != wrong.shape:
            continue
        at, example = around(cell, right, wrong)
        if example is not None:
            return at, example
    return cell, None


def _on_the_same(a: Examined, b: Examined) -> tuple[Tensor | None, Tensor | None]:
    """What the scores of the second give the queries and keys of the first, and what was found."""
    if a.weights is None or b.weights is None or b.scores is None or not b.scores.known:
        return None, None
    if a.weights.w.shape != b.weights.w.shape or a.weights.q.shape != b.weights.q.shape:
        return None, None
    expected = formula(b.scores, b.scores.score(a.weights.q[0], a.weights.k[0]))
    return expected, a.weights.w[0]


def _in_the_example(a: Examined, b: Examined) -> tuple[Tensor | None, Tensor | None]:
    """The weights of the second and of the first in the example."""
    return _now(b), _now(a)


def _now(x: Examined) -> Tensor | None:
    """The weights (b, h, t, s) of the queries and keys of the example."""
    if x.operands is None or x.scores is None or x.weights is None or not x.scores.known:
        return None
    q, k = x.operands.q.double(), x.operands.k.double()
    k = shared(k, q.shape[1], x.weights.values.tiled)
    return formula(x.scores, x.scores.score(q, k))
