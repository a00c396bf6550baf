"""The examiner over correct attentions: none may be called wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from benchmarks.checking.examining import Row, cells, checked, loaded
from benchmarks.checking.right import cases


def tasks(given: Any) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """A row of each case, and what examines it."""
    import_module("transformers").PreTrainedModel  # noqa: B018 - once, for all forked processes
    loaded()
    for case in cases():
        yield (
            {"name": case.name, "limit": case.seconds},
            lambda case=case: checked(case.make(), case.asked),
        )


def line(row: Row) -> str:
    """What was said of one, in a line."""
    return f"{row['name']}: {row.get('error') or row['found'] or 'right'} {row.get('s')} s"


def table(rows: list[Row]) -> str:
    """A line for each case that is not simply right, and how many were examined, refused, slow."""
    done = [r for r in rows if "error" not in r]
    refused = [r for r in rows if r.get("error", "").startswith("ArgumentError")]
    wrong = [r["name"] for r in done if r["mistakes"]]
    slow = [f"{r['name']} {r['s']} s" for r in rows if r.get("s", 0) > r["limit"]]
    partly = [
        r["name"] for r in done if not (r["computes"] and all("mask: " in x for x in r["computes"]))
    ]
    lines = ["| attention | said | s |", "|---|---|---|"]
    for r in rows:
        if r.get("error") or r["found"]:
            lines.append(cells(r["name"], r.get("error") or "; ".join(r["found"]), r.get("s", "")))
    lines += [
        f"\n{len(rows)} correct attentions: {len(done)} examined, {len(wrong)} called wrong, "
        f"{len(refused)} refused with a reason, {len(rows) - len(done) - len(refused)} failed, "
        f"{len(slow)} slower than the limit",
        f"called wrong: {', '.join(wrong)}",
        f"not all of it measured: {', '.join(partly)}",
        f"slow: {', '.join(slow)}",
    ]
    return "\n".join(lines)
