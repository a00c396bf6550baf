"""Calls that are refused, as a table of texts and calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

Calls = Mapping[str, Callable[[], object]]
"""By a regular expression that the text of the error matches."""


def refuses(error: type[Exception], cases: Calls) -> None:
    """Every call raises the error, and its text matches the regular expression before the call."""
    for text, call in cases.items():
        with pytest.raises(error, match=text):
            call()


def refusals(cases: Mapping[type[Exception], Calls]) -> object:
    """Return a test of each call: it raises the error, and its text matches the expression."""
    rows = [(error, text, call) for error, calls in cases.items() for text, call in calls.items()]

    @pytest.mark.parametrize(("error", "text", "call"), rows, ids=[row[1][:40] for row in rows])
    def test(error: type[Exception], text: str, call: Callable[[], object]) -> None:
        refuses(error, {text: call})

    return test
