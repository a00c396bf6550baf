"""The result of a run under `watch`, and the report on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from intently.errors import DataError, KernelError, build
from intently.observe import Recording
from intently.show.labels import visible
from intently.show.page.sides import Side


class Watched(NamedTuple):
    """A recording, and lines to print with it, such as a translation or a note on a cut text."""

    seen: Recording
    told: Sequence[str] = ()
    sides: Sequence[Side] = ()
    """The sides of its matrices, if they are not the tokens of the recording."""
    guided: tuple[str, int] | None = None
    """The module and the head that were taught by links, see `intently.training.loss`."""


def check_seen(command: str, seen: Recording) -> None:
    """Raise `KernelError` with the reason if nothing was recorded."""
    if not seen.calls:
        cause = "; ".join(unsure(seen)).removeprefix("; ") or "no module of it attended"
        raise build(KernelError, command, "attention to be seen", "none", cause)


def fitting(ids: Sequence[int], limit: int | None) -> tuple[Sequence[int], list[str]]:
    """The tokens that fit into a model, and a note if there were more."""
    if not ids:
        raise build(DataError, "TEXT", "a text of at least one token", "none")
    if limit is None or len(ids) <= limit:
        return ids, []
    return ids[:limit], [f"{len(ids):,} tokens, cut after {limit:,}, all the model takes", ""]


def unsure(seen: Recording, told: Iterable[str] = ()) -> Iterator[str]:
    """Report layers that were not seen, cannot be read or are unverified, except those ``told``."""
    found, known = seen.coverage(), {name.partition("[")[0] for name in told}
    lines = [
        f"{'not compared' if line.verified is None else 'UNVERIFIED'}: {line.name}: {line.why}"
        for line in found.seen
        if line.verified is not True and line.name not in known
    ]
    lines += [f"not seen: {name}: {why}" for name, why in found.unseen.items()]
    lines += found.notes
    yield from ["", *(visible(line, 1000) for line in lines)] if lines else ()
