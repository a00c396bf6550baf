"""Entries that the next call may continue, and what tells which row continues which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from intently.observe.generation.joining import Joined, Link
from intently.observe.recording.recording import Entry
from intently.observe.storage.stores import identity
from intently.observe.watching.call import Call


@dataclass(frozen=True)
class Path:
    """The last call of a self-attention: which rows each row may continue, None if it began.

    Or its cache was reordered since: row i continues row ``index[i]``. Where it was ``cropped``,
    calls that saw the same keys may have rows of what was rejected.
    """

    turn: int = 0
    maybe: Tensor | None = None
    index: Tensor | None = None
    cropped: bool = False

    @property
    def rows(self) -> int:
        """How many rows there are, 0 where that is not known."""
        known = self.maybe if self.index is None else self.index
        return 0 if known is None else len(known)


class Opened:
    """The last entry of a module, which the next call may continue."""

    def __init__(self, entry: Entry, rows: Joined, call: Call, turn: int, place: int) -> None:
        assert isinstance(call.k, Tensor)
        self.entry, self.rows, self.turn, self.place = entry, rows, turn, place
        self.key, self.alive = identity(call.k), StorageWeakRef(call.k.untyped_storage())


def chosen(
    opened: Sequence[Opened], place: int, link: Callable[[Opened], Link | None]
) -> tuple[Opened, Link] | None:
    """The entry that a call in this place continues, and how."""
    for some in ([x for x in opened if x.place == place], [x for x in opened if x.place != place]):
        found = [(x, made) for x in some if (made := link(x)) is not None]
        if found:
            return found[0] if len(found) == 1 else None
    return None
