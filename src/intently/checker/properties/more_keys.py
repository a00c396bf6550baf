"""Functions of q, k and v without an example of their own: more keys than queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from intently.checker.calling.subject import Subject
from intently.checker.judging.intent import reach
from intently.checker.report.finding import Finding
from intently.core.masks import Mask

MORE = 3
"""How many keys come before those of the queries' own steps."""


def with_more_keys(subject: Subject, mask: Any) -> Subject | None:
    """The subject with more keys than queries, and with more of both than a window holds."""
    if not isinstance(mask, Mask):
        return None
    names = [subject.of(role) for role in ("q", "k", "v")]
    if any(len(n) != 1 for n in names) or len(subject.contents) != 3:
        return None
    draw, made = torch.Generator().manual_seed(7), dict(subject.inputs)
    for role, (name,) in zip(("q", "k", "v"), names):
        x: Tensor = subject.inputs[name]
        axis = subject.time(name)
        shape = list(x.shape)
        shape[axis] = max(shape[axis], reach(mask) + 3) + MORE * (role != "q")
        made[name] = torch.randn(shape, generator=draw, dtype=x.dtype)
    return replace(subject, inputs=made)


def corrected(findings: list[Finding], more: list[Finding]) -> list[Finding]:
    """What was found, and what more keys than queries tell besides."""
    if any(f.name == "window-missing" for f in more):
        findings = [f for f in findings if f.name != "window-off-by-one"]
    known = {f.name for f in findings}
    for f in more:
        if f.name in ("mask-top-left", "window-missing") and f.name not in known:
            kind = "hazard" if f.name == "mask-top-left" else f.kind
            said = f"with more keys than queries, {f.said}"
            findings = [*findings, replace(f, kind=kind, said=said, example=None)]
    return findings
