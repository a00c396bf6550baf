"""The pytest plugin: a fixture that examines attention.

PyTorch is imported when the fixture is first used, not when pytest starts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from intently.checker import Report


@pytest.fixture
def examine() -> Callable[..., Report]:
    """Examine something that attends; fail with the name and an example of its mistake.

    Call it as you would call `intently.check`; it returns the report. What was not measured fails
    too, unless ``allow_unmeasured``. ::

        def test_my_attention(examine):
            examine(MyAttention(64, 8), mask=it.causal())
    """

    def examined(subject: Any, *, allow_unmeasured: bool = False, **intent: Any) -> Report:
        __tracebackhide__ = True
        from intently.checker import check
        from intently.errors import IntentlyError

        try:
            report = check(subject, **intent)
        except IntentlyError as error:
            pytest.fail(f"could not be examined: {error}")
        if not (report.ok or (report.ok is None and allow_unmeasured)):
            pytest.fail(f"{report.name}: {report.verdict}\n\n{report}")
        return report

    return examined
