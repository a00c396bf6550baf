"""Which steps of which text the queries and keys of a call are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from intently.core.matrix.labelling import crosses, side
from intently.errors import KindError, build
from intently.observe.recording.labels import Tokens, checked, is_pair, is_rows
from intently.observe.storage.stores import identity

COMPARED = 8
"""Last keys of a call at most that tell whether a window goes on after them."""


class Place(NamedTuple):
    """Where a call stands, in which of the texts: the fields of a `Scene` of these names."""

    first: int
    first_key: int
    texts: int
    across: bool
    row_tokens: Sequence[str] | None
    key_tokens: Sequence[str] | None


class Before(NamedTuple):
    """The call of a module before: its text had ``steps``; its keys, the last of them copied."""

    steps: int
    keys: Tensor
    last: Tensor


class Texts:
    """Follows a model through its text, over the steps of a generation.

    The last query of a self-attention stands at its last key (contract 3), unless a cache lets go
    of keys: it shows the last ones of the step before. The queries of a cross-attention stand where
    those of the last self-attention of as many queries stood; if there is none, as in a recurrent
    decoder, after those that saw the same keys. ``names`` are those of the model's modules.

    One sequence of tokens names the text that is read. The text of a decoder, and the image that a
    prompt describes, are others: layers that stand beside a cross-attention, and do not cross.
    """

    def __init__(self, tokens: Tokens | None, names: Collection[str]) -> None:
        if is_rows(tokens):
            fix = "pass those of one, or name rows and keys by position"
            raise build(KindError, "tokens", "the tokens of one text", "several texts", fix=fix)
        self._tokens: Any = checked(tokens)
        self._names = set(names)
        self._crossing = {_layer(name) for name in self._names if crosses(name, self._names)}
        """Layers with a cross-attention."""
        self._encodes = any(side(name) == "encoder" for name in self._names)
        self._last: tuple[int, int, int] | None = None
        """Batch rows and queries of the last self-attention, and the position of the first."""
        self._before: dict[str, Before] = {}

    def place(self, name: str, t: int, k: Tensor, seen: bool | None) -> Place:
        """Where a call of t queries stands; k (…, s, d) are the keys that its cache shows.

        ``seen`` says whether keys came from elsewhere than queries, as far as that was seen.
        """
        s, b, before = k.shape[-2], _batch(k), self._before.get(name)
        across = self._crosses(name, t, s) if seen is None else seen
        if seen:
            self._crossing.add(_layer(name))
        texts, first, first_key, last = 1, s - t, 0, k
        if across:
            same = before is not None and identity(before.keys) == identity(k)
            first = before.steps if before is not None and same else 0
            if self._last is not None:
                rows, steps, at = self._last
                beams = rows // b  # that share the keys of a text
                if steps == t or (steps * beams == t and rows == beams * b):
                    first, texts = at, 1 if steps == t else beams
        else:
            if before is not None and 0 < first < before.steps and _goes_on(k, first, before.last):
                first = before.steps
            first_key = max(0, first + t - s)
            self._last = b, t, first
            last = k[..., -COMPARED:, :].detach().clone()
        self._before[name] = Before(first + t // texts, k, last)
        return Place(first, first_key, texts, across, *self._sides(name, across))

    def _crosses(self, name: str, t: int, s: int) -> bool:
        """Whether a module attends to another text, judged by its name and those beside it.

        Beside an encoder and outside of a decoder, it does if no text attends to itself before.
        """
        known = crosses(name, self._names)
        if known is not None:
            return known
        alone = self._encodes and not self._crossing and self._last is None
        return t > s or (alone and side(name) is None)

    def _sides(self, name: str, across: bool) -> tuple[Sequence[str] | None, Sequence[str] | None]:
        """The tokens of the queries' text and of the keys' text, None if unknown."""
        if is_pair(self._tokens):
            source, target = self._tokens
            own = source if side(name) == "encoder" else target
        else:  # a text or image that others attend from is another one
            beside = _layer(name) in self._crossing
            writes = beside or (bool(self._crossing) and side(name) == "decoder")
            source, target = self._tokens, None
            own = None if writes else source
        return (target, source) if across else (own, own)


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _batch(x: Tensor) -> int:
    """The size of the first axis of x (b, …, s, d)."""
    return x.shape[0] if x.ndim > 2 else 1


def _goes_on(k: Tensor, first: int, last: Tensor) -> bool:
    """Whether the keys (…, s, d) before ``first`` end in the ``last`` ones of a row each."""
    n = min(first, last.shape[-2])
    here = k[..., first - n : first, :].reshape(_batch(k), -1)
    there = last[..., last.shape[-2] - n :, :].reshape(_batch(last), -1)
    if here.shape[-1] != there.shape[-1] or here.dtype is not there.dtype:
        return False
    return bool((here[:, None] == there).all(-1).any(-1).all())
