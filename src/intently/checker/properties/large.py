"""Whether attention stays finite and right when scores are large: ±10,000 and more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from intently.checker.examined import Examination
from intently.checker.measuring.attention import Attention
from intently.checker.measuring.by_values import measured
from intently.checker.properties.trial import Property
from intently.checker.report.examples import around, formula
from intently.checker.report.finding import Finding

CLEAR = 0.99
"""The weight from which a key counts as the one that a row attends."""
LARGE = 100.0
"""By what queries and keys are multiplied."""


def large_scores(whole: Examination) -> Property:
    """Each attention attends to the key with the largest score, and no hidden one."""
    subject, name = whole.subject, "large scores"
    names = [n for n in subject.of("q", "k") if subject.inputs[n].is_floating_point()]
    if len(names) < 2 or any(f.kind == "mistake" for f in whole.findings):
        return Property(name, None)
    try:
        larger = {n: subject.inputs[n] * LARGE for n in names}
        found = measured(replace(subject, inputs={**subject.inputs, **larger}))[2]
    except Exception:  # whatever the code does with large numbers
        return Property(name, None)
    wrong: list[Finding] = []
    tried = 0
    for one, now in zip(whole.attentions, found):
        a = one.attention
        if a.slope is None or a.axis != "keys" or now.product is None or a.soft is not None:
            continue
        tried += 1
        wrong += _apart(a, now)
    if not wrong and len(found) < len(whole.attentions):
        tried = 0
    if wrong:
        return Property(name, False, wrong[0].said, tuple(wrong))
    return Property(name, True if tried else None)


def _apart(a: Attention, now: Attention) -> Iterator[Finding]:
    w = now.weights
    if now.product is None or not now.product.shape == w.shape == a.weights.shape:
        return
    expected = formula(a, now.product, a.shown)
    clear = expected.amax(-1, keepdim=True) > CLEAR
    lost = clear & ~w.isfinite()
    if bool(lost.any()):
        b, h, i, j = lost.nonzero()[0].tolist()
        said = f"with scores of about 10,000, the output of query {i} is not finite"
        said += f" (batch row {b}, head {h})"
        yield Finding("large-scores", said, "hazard", a.where, (b, h, i, j))
        return
    hidden = ~a.shown & (w > 1 - CLEAR)
    wrong = hidden if bool(hidden.any()) else clear & ((expected - w).abs() > CLEAR / 2)
    if not bool(wrong.any()):
        return
    at = tuple(wrong.nonzero()[0].tolist())
    cell, example = around(at, expected, torch.where(w.abs() < 1e-9, 0.0, w))
    if bool(hidden.any()):
        said = f"with scores of about 10,000, query {at[2]} attends to hidden key {at[3]}:"
        said += " the number that the mask adds is too small"
        yield Finding("mask-too-weak", said, "hazard", a.where, cell, example=example)
        return
    said = f"with scores of about 10,000, query {at[2]} does not attend to the highest-scoring key"
    yield Finding("large-scores", said, "hazard", a.where, cell, example=example)
