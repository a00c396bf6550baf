"""Which tokens label the rows and columns of a matrix: what does not surely fit is not labelled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeAlias

from intently.errors import KindError, build
from intently.matrix.labelling import crosses, reads_source, side

Tokens: TypeAlias = Sequence[str] | tuple[Sequence[str], Sequence[str]]
"""The texts of one sequence, or a pair of such: (source, target) of an encoder and a decoder."""

OWN = (0, 1)
"""Tokens that a decoder's matrix reads are as many as its keys, or one more: the last produced."""


class Labels(NamedTuple):
    """Texts of rows and columns, None where unknown; ``same`` where both are of one sequence."""

    rows: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    same: bool = False


NONE = Labels()


def checked(tokens: Any) -> Tokens | None:
    """Return tokens as they are; raises `KindError` for anything but texts, or a pair of such."""
    for texts in sides(tokens):
        listed = hasattr(texts, "__getitem__") and hasattr(texts, "__len__")
        odd = next((x for x in texts if not isinstance(x, str)), None) if listed else texts
        if odd is not None or isinstance(texts, dict):
            inside = f" with {type(odd).__name__}" if listed and odd is not None else ""
            raise build(
                KindError,
                "tokens",
                "a list of texts, or a pair of such lists (source, target)",
                type(texts).__name__ + inside,
                fix="a tokenizer's convert_ids_to_tokens(ids) gives texts",
            )
    return tokens


def is_pair(tokens: Any) -> bool:
    """Whether they are of two sequences: a tuple of two, neither of them a text."""
    if not isinstance(tokens, tuple) or len(tokens) != 2:
        return False
    return all(hasattr(x, "__len__") and not isinstance(x, str) for x in tokens)


def sides(tokens: Any) -> tuple[Any, ...]:
    """The sequences that are labelled: none, one, or source and target."""
    if tokens is None:
        return ()
    return tokens if is_pair(tokens) else (tokens,)


def labels(
    tokens: Tokens | None,
    name: str,
    shape: Sequence[int],
    looks_back: Callable[[], bool],
    sources: Collection[int] = (),
    beside: Collection[str] = (),
) -> Labels:
    """Return the labels of a matrix (…, t, s); ``looks_back`` says whether it sees the past alone.

    A row is labelled with the token that it produces where it sees the past alone or attends
    across, else with its own. Tokens of one sequence that are as many as one of ``sources``, the
    lengths that encoders of the recording read, are theirs alone. ``beside`` are the names of all
    modules that attended.
    """
    t, s = shape[-2:]
    if tokens is None:
        return NONE
    if not is_pair(tokens):
        (own,) = sides(tokens)
        if len(own) in sources and not reads_source(name, beside):
            return NONE
        return _of_one(tuple(own), crosses(name, beside), t, s, looks_back)
    source, target = map(tuple, sides(tokens))
    where, across, back = side(name), crosses(name, beside), looks_back()
    fits = len(source) == s, len(target) - s in OWN
    if where == "encoder":
        return Labels(source, source, True) if not across and fits[0] and t == s else NONE
    if across is None and t != s:
        across = not back
        if across and where is None and not (fits[0] and len(target) - t in OWN):
            return NONE
    if across:
        produced = _produced(target, t) if len(target) - t in OWN else None
        return Labels(produced, source if fits[0] else None)
    if where is None and fits == (True, False) and t == s and not back:
        return Labels(source, source, True)
    known = where == "decoder" and (back or across is False)
    if known or (where is None and back and not fits[0]):
        return _of_one(target, False, t, s, lambda: back)
    return NONE


def _of_one(
    tokens: tuple[str, ...], across: bool | None, t: int, s: int, looks_back: Callable[[], bool]
) -> Labels:
    """The labels where one sequence is known: of a self-attention, or of the keys."""
    of_keys = Labels(None, tokens if len(tokens) == s else None)
    if across or t > s or len(tokens) - s not in OWN:
        return of_keys
    if looks_back():
        return Labels(_produced(tokens[s - t :], t), tokens[:s], True)
    return Labels(tokens, tokens, True) if t == s == len(tokens) else of_keys


def _produced(tokens: tuple[str, ...], t: int) -> tuple[str, ...]:
    """What each of t rows that read ``tokens`` produces; the last may be unknown."""
    return (*tokens[1:], "")[:t]
