"""Which steps of which text the queries and keys of a call are."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from intently.edits import Scene
from intently.matrix import LazyMatrix
from intently.matrix.labelling import crosses, side
from intently.observe.recording.labels import Tokens, checked, is_pair


class Texts:
    """Follows a model through its text, over the steps of a generation.

    The last query of a self-attention stands at its last key (contract 3). The queries of a
    cross-attention stand where those of the last self-attention of as many queries stood.
    """

    def __init__(self, tokens: Tokens | None) -> None:
        self._tokens = checked(tokens)
        self._names: set[str] = set()
        self._last: tuple[int, int] | None = None
        """How many queries the last self-attention had, and the position of the first."""

    def passed(self, name: str, q: Sequence[int], k: Sequence[int]) -> None:
        """Hear of a call that nobody edits: queries (…, t, d) and keys (…, s, d)."""
        self._first(name, q[-2], k[-2])

    def scene(self, name: str, number: int, matrix: LazyMatrix, v: Tensor) -> Scene:
        """The scene of a call."""
        t, s = matrix.shape[-2:]
        across, first = self._first(name, t, s)
        own, keys = self._sides(name, across)
        return Scene(name, number, matrix, v, first, 0, across, own, keys)

    def _first(self, name: str, t: int, s: int) -> tuple[bool, int]:
        """Whether a call crosses texts, and the position of its first query."""
        self._names.add(name)
        known = crosses(name, self._names)
        across = t > s if known is None else known
        if not across:
            self._last = t, s - t
            return False, s - t
        same = self._last is not None and self._last[0] == t
        return True, self._last[1] if same and self._last is not None else 0

    def _sides(self, name: str, across: bool) -> tuple[Sequence[str] | None, Sequence[str] | None]:
        """The tokens of the queries' text and of the keys' text, None if unknown."""
        tokens = self._tokens
        if tokens is None:
            return None, None
        if not is_pair(tokens):
            return None if across else tokens, tokens  # type: ignore[return-value]
        source, target = tokens
        if across:
            return target, source  # type: ignore[return-value]
        own = source if side(name) == "encoder" else target
        return own, own  # type: ignore[return-value]
