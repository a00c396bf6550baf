"""Whether attention stays finite and right when scores are large: ±10,000 and more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from intently.checker.computing.cores import Examined
from intently.checker.properties.trial import Property
from intently.checker.report.examples import around, formula
from intently.checker.report.finding import Finding

CLEAR = 0.99
"""The weight from which a key counts as the one that a row attends."""
RESIDUAL = 1e-4
"""Scores that are known less well say nothing of large ones."""


def large_scores(cores: Iterable[Examined]) -> Property:
    """Each attention attends to the key with the largest score, and no hidden one."""
    found: list[Finding] = []
    tried = 0
    for core in cores:
        expected = _expected(core)
        if expected is not None and core.weights is not None and core.weights.large is not None:
            tried += 1
            found += _apart(core, expected, core.weights.large[0])
    if found:
        return Property("large scores", False, found[0].said, tuple(found))
    return Property("large scores", True if tried else None)


def _expected(core: Examined) -> Tensor | None:
    """The weights of the draw with large scores; None where its scores are not known."""
    scores, weights = core.scores, core.weights
    if scores is None or weights is None or weights.large is None:
        return None
    usual = scores.axis == "keys" or scores.extra is not None
    if not usual or scores.residual > RESIDUAL or scores.split or scores.after:
        return None
    _, q, k = weights.large
    return formula(scores, scores.score(q.double(), k.double()))


def _apart(core: Examined, expected: Tensor, found: Tensor) -> Iterator[Finding]:
    assert core.scores is not None
    clear = expected.amax(-1, keepdim=True) > CLEAR
    lost = clear & ~found.isfinite()
    if bool(lost.any()):
        b, h, i, j = lost.nonzero()[0].tolist()
        said = f"with scores of about 10,000, the output of query {i} is not finite"
        said += f" (batch row {b}, head {h})"
        yield Finding("large-scores", said, "hazard", core.where, (b, h, i, j))
        return
    hidden = ~core.scores.seen & (found > 1 - CLEAR)
    wrong = hidden if bool(hidden.any()) else clear & ((expected - found).abs() > CLEAR / 2)
    if not bool(wrong.any()):
        return
    at = tuple(wrong.nonzero()[0].tolist())
    cell, example = around(at, expected, torch.where(found.abs() < 1e-9, 0.0, found))
    if bool(hidden.any()):
        said = f"with scores of about 10,000, query {at[2]} attends to hidden key {at[3]}:"
        said += " the number that the mask adds is too small"
        yield Finding("mask-too-weak", said, "hazard", core.where, cell, example=example)
        return
    said = f"with scores of about 10,000, query {at[2]} does not attend to the highest-scoring key"
    yield Finding("large-scores", said, "hazard", core.where, cell, example=example)
