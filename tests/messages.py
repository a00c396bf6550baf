"""Tables of calls that are refused, and the messages that they raise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

Call = Callable[[], object]
Refusals = Mapping[type[Exception], Mapping[str, Call | list[Call]]]


def refused(
    call: Callable[[], object], kind: type[Exception], text: str, *, whole: bool = False
) -> None:
    """Check that a call raises this kind of error, and how its message begins, or the whole."""
    with pytest.raises(kind) as caught:
        call()
    said = str(caught.value)
    assert said == text if whole else said.startswith(text), said


def raises(
    cases: Refusals | Sequence[tuple[Callable[[], object], type[Exception], str]],
    *,
    whole: bool = False,
) -> object:
    """Return a test of each call: its kind of error, and the words its message begins with, or is.

    ``cases`` are the calls of each message of each kind of error.
    """
    if isinstance(cases, Mapping):
        cases = [
            (call, kind, text)
            for kind, of_kind in cases.items()
            for text, calls in of_kind.items()
            for call in (calls if isinstance(calls, list) else [calls])
        ]

    @pytest.mark.usefixtures("as_users_call")
    @pytest.mark.parametrize(("call", "kind", "text"), cases, ids=[c[2][:40] for c in cases])
    def test(call: Callable[[], object], kind: type[Exception], text: str) -> None:
        refused(call, kind, text, whole=whole)

    return test
