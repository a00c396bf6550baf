"""Which steps of which text the queries and keys of a call are."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from torch import Tensor

from intently.core.matrix.labelling import crosses, side
from intently.errors import KindError, build
from intently.observe.recording.labels import Tokens, checked, is_pair, is_rows
from intently.observe.storage.stores import identity

COMPARED = 8
"""Last keys of a call at most that tell whether a window goes on after them."""


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

    def place(self, name: str, t: int, k: Tensor, seen: bool | None) -> dict[str, Any]:
        """Where a call of t queries stands, for its `Scene`.

        Its cache shows the keys (…, s, d). ``seen`` says whether they came from elsewhere than
        queries, as far as that was seen.
        """
        s = k.shape[-2]
        across = crosses(name, self._names, seen)
        if across is None:  # outside of a decoder, an encoder's text if none attends to itself
            alone = self._encodes and not self._crossing and self._last is None
            across = t > s or (alone and side(name) is None)
        if seen:
            self._crossing.add(_layer(name))
        before, first, texts, last = self._before.get(name), s - t, 1, k
        if across:
            first, texts = self._first_across(t, k, before)
        else:
            if before is not None and 0 < first < before.steps and _goes_on(k, first, before.last):
                first = before.steps
            self._last = _batch(k), t, first
            last = k[..., -COMPARED:, :].detach().clone()
        self._before[name] = Before(first + t // texts, k, last)
        place = {"first": first, "first_key": 0 if across else max(0, first + t - s)}
        own, keys = self._sides(name, across)
        return place | {"texts": texts, "across": across, "row_tokens": own, "key_tokens": keys}

    def _first_across(self, t: int, k: Tensor, before: Before | None) -> tuple[int, int]:
        """The position of a cross-attention's first query, and how many texts share its keys."""
        if self._last is not None:
            b, steps, first = self._last
            for texts in (1, b // _batch(k)):
                if steps * texts == t and (texts == 1 or b == texts * _batch(k)):
                    return first, texts
        same = before is not None and identity(before.keys) == identity(k)
        return before.steps if before is not None and same else 0, 1

    def _sides(self, name: str, across: bool) -> tuple[Any, Any]:
        """The tokens of the queries' text and of the keys' text, None if unknown."""
        if is_pair(self._tokens):
            source, target = self._tokens
            own = source if side(name) == "encoder" else target
        else:
            source, target = self._tokens, None
            writes = bool(self._crossing) and side(name) == "decoder"
            own = None if writes or _layer(name) in self._crossing else source
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
