"""A trial of a property: what it is tried with, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from intently.checker.calling.subject import Subject
from intently.checker.examined import Examination
from intently.checker.properties.axes import nobodys
from intently.checker.report.finding import Finding


@dataclass(frozen=True)
class Property:
    """A property by name, whether it holds (None: it does not apply), and what was seen."""

    name: str
    holds: bool | None
    said: str = ""
    findings: tuple[Finding, ...] = ()


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
        unseen = nobodys(self.subject, y)
        for one in self.whole.attentions:
            seen = one.attention.shown
            if one.side == "self" and seen.shape[::2] == y.shape[:2] == (len(seen), seen.shape[-1]):
                unseen = unseen | ~seen.flatten(1, 2).any(1)[..., None]  # of no query at all
        return torch.where(unseen, self.first, y)


def difference(a: Tensor, b: Tensor) -> Tensor:
    """Where two outputs differ, relative to the largest entry; NaN differs from all but NaN."""
    size = b.detach().abs().nan_to_num(0.0).amax().clamp(min=1e-12)
    off = ((a - b).abs() / size).detach()
    off = torch.where(a.isnan() & b.isnan(), torch.zeros_like(off), off)
    return off.nan_to_num(torch.inf)


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


def broken(name: str, said: str, finding: str, where: str = "") -> Property:
    """A property that does not hold, with its finding and the module where it breaks first."""
    at = f"; first in `{where}`" if where else ""
    return Property(name, False, said + at, (Finding(finding, said, where=where),))
