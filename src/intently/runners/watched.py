"""What a run under `watch` hands back, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from intently.errors import DataError, KernelError, build
from intently.observe import Recording
from intently.show.labels import visible
from intently.show.page.sides import Side


class Watched(NamedTuple):
    """A recording, and the lines to print with it: a translation, say, or that a text was cut."""

    seen: Recording
    told: Sequence[str] = ()
    sides: Sequence[Side] = ()
    """What stands on the sides of its matrices, where the tokens of the recording do not say."""


def check_seen(command: str, seen: Recording) -> None:
    """Raise `KernelError` for a recording of nothing, with why."""
    if not seen.calls:
        cause = "; ".join(unsure(seen)).removeprefix("; ") or "no module of it attended"
        raise build(KernelError, command, "attention to be seen", "none", cause)


def fitting(ids: Sequence[int], limit: int | None) -> tuple[Sequence[int], list[str]]:
    """As many tokens as a model takes, and what is to be told where that is not all."""
    if not ids:
        raise build(DataError, "TEXT", "a text of at least one token", "none")
    if limit is None or len(ids) <= limit:
        return ids, []
    return ids[:limit], [f"{len(ids):,} tokens, cut after {limit:,}, all the model takes", ""]


def unsure(seen: Recording, told: Iterable[str] = ()) -> Iterator[str]:
    """What was not seen, cannot be read or does not give what came out, but for what was told."""
    found, known = seen.coverage(), {name.partition("[")[0] for name in told}
    lines = [
        f"{'not compared' if line.verified is None else 'UNVERIFIED'}: {line.name}: {line.why}"
        for line in found.seen
        if line.verified is not True and line.name not in known
    ]
    lines += [f"not seen: {name}: {why}" for name, why in found.unseen.items()]
    lines += found.notes
    yield from ["", *(visible(line, 1000) for line in lines)] if lines else ()
