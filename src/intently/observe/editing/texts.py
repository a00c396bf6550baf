"""Which steps of which text the queries and keys of a call are."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor

from intently.edits import Scene
from intently.matrix import LazyMatrix
from intently.matrix.labelling import crosses, side
from intently.observe.recording.labels import Tokens, checked, is_pair


class Texts:
    """Follows a model through its text, over the steps of a generation.

    The last query of a self-attention stands at its last key (contract 3). The queries of a
    cross-attention stand where those of the last self-attention of as many queries stood.
    ``names`` are those of the model's modules.

    One sequence of tokens names the text that is read. The text of a decoder, and the image that a
    prompt describes, are others: layers that stand beside a cross-attention, and do not cross.
    """

    def __init__(self, tokens: Tokens | None, names: Collection[str]) -> None:
        self._tokens = checked(tokens)
        self._names = set(names)
        self._crossing = {_layer(name) for name in self._names if crosses(name, self._names)}
        """Layers with a cross-attention."""
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
            if across:
                return None, tokens  # type: ignore[return-value]
            own = None if self._writes(name) else tokens
            return own, own  # type: ignore[return-value]
        source, target = tokens
        if across:
            return target, source  # type: ignore[return-value]
        own = source if side(name) == "encoder" else target
        return own, own  # type: ignore[return-value]

    def _writes(self, name: str) -> bool:
        """Whether a self-attention belongs to a text or image that others attend from."""
        beside = _layer(name) in self._crossing
        return beside or (bool(self._crossing) and side(name) == "decoder")


def _layer(name: str) -> str:
    return name.rpartition(".")[0]
