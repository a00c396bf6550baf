"""The command line as a test runs it: what was said, where, and with which status."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


Command = Callable[..., Outcome]


def refused(outcome: Outcome, *, silent: bool = True) -> str:
    """Check that a message is one line on standard error, beside nothing else if silent."""
    assert outcome.status == 2 and not (silent and outcome.out)
    assert outcome.err.startswith("intently: ") and outcome.err.count("\n") == 1
    return outcome.err
