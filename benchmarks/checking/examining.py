"""What `check` says of one subject, as a row, and the parts of a table."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from typing import Any

Row = dict[str, Any]


def checked(subject: Any, asked: Mapping[str, Any]) -> Row:
    """The names of what was found, or the error; ``found`` holds mistakes and hazards."""
    import intently as it

    start = time.perf_counter()
    try:
        report = it.check(subject, **asked)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        row: Row = {"error": f"{type(error).__name__}: {error} ({at.name}:{at.lineno})"[:500]}
    else:
        found = [x.name for x in report.findings if x.kind in ("mistake", "hazard")]
        row = {
            "ok": report.ok, "mistakes": [x.name for x in report.mistakes], "found": found,
            "said": [str(x)[:160] for x in report.findings],
            "computes": [x[:160] for x in report.computes],
        }  # fmt: skip
    return row | {"s": round(time.perf_counter() - start, 1)}


def loaded() -> None:
    """Import the examiner once, for all forked processes."""
    import intently as it

    assert it.check


def cells(*told: Any) -> str:
    """A line of a table."""
    texts = (str(x).replace("|", "\\|").replace("\n", " ")[:160] for x in told)
    return f"| {' | '.join(texts)} |"
