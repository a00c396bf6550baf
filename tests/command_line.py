"""The command line as a test runs it: what was said, where, and with which status."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


Command = Callable[..., Outcome]


def refused(outcome: Outcome) -> str:
    """Check that all that was said is one line on standard error, and return it."""
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith("intently: ") and outcome.err.count("\n") == 1
    return outcome.err
