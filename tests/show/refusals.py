"""Calls that are refused, as a table of texts and calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest


def refuses(error: type[Exception], cases: Mapping[str, Callable[[], object]]) -> None:
    """Every call raises the error, and its text matches the regular expression before the call."""
    for text, call in cases.items():
        with pytest.raises(error, match=text):
            call()
