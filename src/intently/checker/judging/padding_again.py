"""Padding that seems to be attended: other padding tells whether its mask lies elsewhere.

Where the first row is whole, its mask in place of another's hides nothing; where a mask of finite
numbers lies on the queries, it adds the same to all keys of a row. Neither shows in one example.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from intently.checker.calling.subject import Subject
from intently.checker.measuring.after import Rows
from intently.checker.report.finding import Finding

KNOWN = ("attend", "ignore", "lengths", "add")


def repadded(subject: Subject, name: str) -> Subject | None:
    """The subject with one step more of padding, its rows in reverse order; None if it has none."""
    x, meaning = subject.inputs.get(name), subject.meanings.get(name, "")
    if meaning not in KNOWN or not isinstance(x, Tensor) or len(x) != subject.batch:
        return None
    if meaning == "lengths":
        return replace(subject, inputs=subject.inputs | {name: (x - 1).clamp(min=1).flip(0)})
    real = _real(x, meaning)
    if real is None:
        return None
    more = real & (real.flip(-1).cumsum(-1).flip(-1) > 1)  # all but the last
    more = torch.where(more.any(-1, keepdim=True), more, real)
    return replace(subject, inputs=subject.inputs | {name: _as(x, meaning, more).flip(0)})


def on_queries(subject: Subject, rows: Rows | None, name: str, where: str) -> Finding | None:
    """The finding that a mask of keys moves the outputs of the queries at their places, if so."""
    x, meaning = subject.inputs.get(name), subject.meanings.get(name, "")
    real = _real(x, meaning) if isinstance(x, Tensor) else None
    if real is None or not isinstance(x, Tensor) or bool(real.all()):
        return None
    whole, one = torch.ones_like(real), torch.ones_like(real)
    one[0, ..., 0] = False
    if rows is None:
        return None
    y, z = (rows.of(subject.output(**{name: _as(x, meaning, m)})) for m in (whole, one))
    if y.shape[1] != x.shape[-1] or y.shape[1] < 2:
        return None
    moved = (y != z).any(-1)
    if not bool(moved[0, 0]) or int(moved.sum()) > 1:
        return None
    said = f"{name}: on the queries; to hide key 0 moves the output of query 0 alone"
    return Finding("mask-on-queries", said, where=where)


def _real(x: Tensor, meaning: str) -> Tensor | None:
    """Which keys are no padding, in the shape of the mask; None for a mask of another kind."""
    if meaning not in KNOWN[:2] + KNOWN[3:] or x.ndim < 2 or any(n != 1 for n in x.shape[1:-1]):
        return None
    return x > -1e4 if meaning == "add" else (x != 0) == (meaning == "attend")


def _as(x: Tensor, meaning: str, real: Tensor) -> Tensor:
    """A mask of the same kind that says which keys are no padding."""
    if meaning == "add":
        return torch.where(real, torch.zeros_like(x), x.min())
    return (real if meaning == "attend" else ~real).to(x.dtype)
