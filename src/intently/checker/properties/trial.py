"""A trial of a property: what it is tried with, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from intently.checker.calling.subject import Subject
from intently.checker.examined import Examination
from intently.checker.judging.sides import about
from intently.checker.report.finding import Finding


@dataclass(frozen=True)
class Property:
    """A property by name, whether it holds (None: it does not apply), and what was seen."""

    name: str
    holds: bool | None
    said: str = ""
    findings: tuple[Finding, ...] = ()


Outcome = Property | Finding | str | bool | None
"""What came of a trial: a finding, whether it holds, or why that cannot be told."""


def named(name: str, outcome: Outcome) -> Property:
    """The property of that name which came out so."""
    if isinstance(outcome, Finding):
        at = f"; first in `{outcome.where}`" if outcome.where else ""
        return Property(name, False, outcome.said + at, (outcome,))
    if isinstance(outcome, str):
        return Property(name, None, outcome)
    return outcome if isinstance(outcome, Property) else Property(name, outcome)


class NotToldError(Exception):
    """The positions of an output could not be told from what flows into it."""


@dataclass(frozen=True)
class Trial:
    """What properties are tried with: the subject, what it should do, and the first output."""

    subject: Subject
    causal: bool
    first: Tensor
    whole: Examination

    @property
    def same(self) -> float:
        """The largest relative difference of outputs that are the same."""
        return self.subject.precision.same

    def by_position(self, y: Tensor) -> Tensor:
        """An output as (b, t, n), by the rows that flow into it; raises `NotToldError`."""
        rows = self.whole.rows
        if rows is None or y.shape != self.first.shape:
            raise NotToldError
        return rows.of(y)

    def output(self, **changed: Any) -> Tensor:
        """The output with some inputs changed."""
        return self.subject.output(**changed)

    def read(self, y: Tensor) -> Tensor:
        """An output, but for those at padding, which nobody reads: they are as in the first."""
        if y.ndim != 3 or y.shape != self.first.shape:
            return y
        return torch.where(self.unread(*y.shape[:2])[..., None], self.first, y)

    def unread(self, b: int, t: int) -> Tensor:
        """Which rows of an output (b, t) are those of padding."""
        unseen = torch.zeros(b, t, dtype=torch.bool)
        for name, x in meant(self.subject, "attend", "ignore", "lengths"):
            if self.subject.main in padded_by(self.subject, name) or self.subject.of("q"):
                real = real_keys(self.subject, name, x)
                if real is not None and real.shape == (b, t):
                    unseen = unseen | ~real
        for one in self.whole.attentions:
            seen = one.attention.shown
            if one.side == "self" and seen.shape[::2] == (b, t) == (len(seen), seen.shape[-1]):
                unseen = unseen | ~seen.flatten(1, 2).any(1)  # of no query at all
        return unseen


def meant(subject: Subject, *meanings: str) -> list[tuple[str, Tensor]]:
    """The tensors among the inputs that have one of these meanings, with their names."""
    given = ((n, subject.inputs.get(n)) for n, m in subject.meanings.items() if m in meanings)
    return [(n, x) for n, x in given if isinstance(x, Tensor)]


def leaves(subject: Subject) -> dict[str, Tensor]:
    """Copies of the inputs of numbers, to ask gradients of."""
    floats = {n: x for n in subject.contents if (x := subject.inputs[n]).is_floating_point()}
    return {n: x.detach().clone().requires_grad_() for n, x in floats.items()}


def padded_by(subject: Subject, name: str) -> list[str]:
    """The inputs that a mask of padding may be about."""
    where = about(subject, name)
    beside = subject.of("context", "k", "v") if where != {"self"} else []
    return beside + [n for n in subject.of("x", "ids") if "self" in where or not beside]


def real_keys(subject: Subject, name: str, mask: Tensor) -> Tensor | None:
    """Which keys (b, s) of a padding mask are no padding; None if it is another mask."""
    meaning = subject.meanings[name]
    if meaning == "lengths":
        x = subject.inputs[subject.of("context", "k", "x", "ids")[0]]
        return torch.arange(x.shape[1]) < mask[:, None]
    real = mask != 0 if meaning == "attend" else mask == 0
    if real.ndim == 4 and real.shape[-2] == 1:
        real = real[:, 0, 0]
    return real if real.ndim == 2 and real.shape[0] == subject.batch else None


def difference(a: Tensor, b: Tensor) -> Tensor:
    """Where two outputs differ, relative to the largest entry; NaN differs from all but NaN."""
    size = b.detach().abs().nan_to_num(0.0, 0.0).amax().clamp(min=1e-12)
    off = ((a - b).abs() / size).detach()
    return off.masked_fill((a == b) | (a.isnan() & b.isnan()), 0.0).nan_to_num(torch.inf)


def part(a: Tensor, b: Tensor) -> float:
    """The largest relative difference of two outputs; infinite if their shapes differ."""
    return float(difference(a, b).amax()) if a.shape == b.shape and a.numel() else torch.inf


def first_place(trial: Trial, y: Tensor, same: float) -> str:
    """Where an output differs first from that of the plain call; "" if that cannot be told."""
    try:
        off = difference(trial.by_position(y), trial.by_position(trial.first))
    except NotToldError:
        return ""
    row, i = (off > same).any(-1).nonzero()[0].tolist()
    return f", first at position {i} of row {row}"
