"""The examiner over correct attentions: none may be called wrong."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.checking.right import Case, cases


def tasks(given: Any) -> Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]:
    """A row of each case, and what examines it."""
    from transformers import GenerationMixin, PreTrainedModel

    assert GenerationMixin and PreTrainedModel  # imported once, for all forked processes
    for case in cases():
        yield {"name": case.name, "limit": case.seconds}, partial(examined, case)


def examined(case: Case) -> dict[str, Any]:
    """Examine a case: what was understood and computed, and what was found."""
    from intently.checker import check
    from intently.errors import ArgumentError

    made = case.make()
    start = time.perf_counter()
    row: dict[str, Any] = {}
    try:
        report = check(made, **case.asked)
    except ArgumentError as error:
        row["refused"] = str(error)[:500]
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        row["error"] = f"{type(error).__name__}: {error} ({at.name}:{at.lineno})"[:500]
    else:
        row |= {
            "understood": report.understood, "computes": list(report.computes),
            "mistakes": [str(x) for x in report.mistakes],
            "others": [str(x) for x in report.findings if x.kind != "mistake"],
            "open": [f"{x.name}: {x.said}" for x in report.properties if x.holds is False],
        }  # fmt: skip
    row["s"] = round(time.perf_counter() - start, 1)
    return row


def line(row: dict[str, Any]) -> str:
    """What was said of one, in a line."""
    said = row.get("mistakes") or row.get("error") or row.get("refused") or "right"
    return f"{row['name']}: {said} {row.get('s')} s"


def measured(row: dict[str, Any]) -> str:
    """What was measured inside, in a few words."""
    if "computes" not in row:
        return row.get("refused") or row.get("error", "")
    return f"{len(_seen(row))} of {len(row['computes'])} attentions measured"


def _seen(row: dict[str, Any]) -> list[str]:
    return [x for x in row["computes"] if "mask: " in x]


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each case, and totals."""
    lines = ["| attention | understood | computes | mistakes | hazards | s |", "|" + "---|" * 6]
    for r in rows:
        wrong = "; ".join(r.get("mistakes", ()))
        hazards = "; ".join(x for x in r.get("others", ()) if x.startswith("hazard"))
        told = (r.get("understood", ""), measured(r), wrong, hazards, str(r.get("s", "")))
        cells = [x.replace("|", "\\|").replace("\n", " ")[:160] for x in (r["name"], *told)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join((*lines, "", summary(rows)))


def summary(rows: list[dict[str, Any]]) -> str:
    """How many were examined, called wrong, refused, slow."""
    done = [r for r in rows if "computes" in r]
    wrong = [r["name"] for r in done if r["mistakes"]]
    slow = [f"{r['name']} {r['s']} s" for r in rows if r.get("s", 0) > r.get("limit", 5)]
    partly = [r["name"] for r in done if len(_seen(r)) < len(r["computes"]) or not r["computes"]]
    lines = [
        f"{len(rows)} correct attentions: {len(done)} examined, {len(wrong)} called wrong, "
        f"{sum('refused' in r for r in rows)} refused with a reason, "
        f"{sum('error' in r for r in rows)} failed, {len(slow)} slower than the limit",
        f"called wrong: {', '.join(wrong)}",
        f"not all of it measured: {', '.join(partly)}",
        f"slow: {', '.join(slow)}",
        f"not examined: {', '.join(r['name'] for r in rows if 'computes' not in r)}",
    ]
    return "\n".join(lines)
