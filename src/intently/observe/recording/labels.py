"""The tokens that label the rows and columns of a matrix; labels that may be wrong are left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from torch import Tensor

from intently.core.matrix.labelling import crosses, one_text, reads_source, side
from intently.errors import KindError, build

Text: TypeAlias = Sequence[str] | tuple[Sequence[str], Sequence[str]]
"""The tokens of one sequence, or of two: (source, target) of an encoder and a decoder."""

Tokens: TypeAlias = Text | list[Text]
"""One text for all rows of a batch, or a list with the text of each, without padding."""

OWN = (0, 1)
"""How many more tokens than keys a decoder may have: the last one is produced and never read."""


class Labels(NamedTuple):
    """Texts of rows and columns, None if unknown; ``same`` if both are of one sequence."""

    rows: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    same: bool = False


NONE = Labels()


Naming: TypeAlias = Callable[..., Any]
"""Ids to texts."""

IDS, MASK = "input_ids", "attention_mask"


@dataclass
class Texts:
    """What all entries of a recording know of the texts that the model reads.

    ``tokens`` are as in `Recording`, ``several`` says that the rows of a batch differ, ``sources``
    are the numbers of keys that encoders have, ``names`` those of all modules that attended.
    """

    tokens: Tokens | None = None
    several: bool = False
    sources: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def read(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], naming: Naming | None, pad: int | None
    ) -> None:
        """Hear of the arguments of the outermost module: the ids that it reads, or none.

        A ``naming`` of ids makes ``tokens`` of them, less those that are ``pad``. Without it, rows
        that differ show that tokens of one text label none of them. Steps of a generation, whose
        mask is longer than their ids, add nothing: beams may change places.
        """
        ids: Any = kwargs.get(IDS, next(iter(args), None))
        mask, written = kwargs.get(MASK), kwargs.get("decoder_" + IDS)
        if not _are_ids(ids):
            return
        if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[1] > ids.shape[1]:
            return

        def rows_of(ids: Tensor, mask: Any) -> list[list[Any]]:
            """The tokens of each row, or its ids, without padding."""
            same = isinstance(mask, Tensor) and mask.shape == ids.shape
            seen = mask != 0 if same else ids != (-1 if pad is None else pad)
            rows = [row[own].tolist() for row, own in zip(ids, seen)]
            return rows if naming is None else [list(naming(row)) for row in rows]

        rows: list[Any] = rows_of(ids, mask)
        if _are_ids(written) and len(written) == len(ids):
            rows = list(zip(rows, rows_of(written, kwargs.get("decoder_" + MASK))))
        self.tokens = self.tokens if naming is None else checked(rows)
        self.several = self.several or any(row != rows[0] for row in rows)


def _are_ids(x: Any) -> TypeGuard[Tensor]:
    return isinstance(x, Tensor) and x.ndim == 2 and not x.is_floating_point() and x.numel() > 0


def naming_of(tokens: Any) -> Naming | None:
    """What a tokenizer of transformers, or of ours, makes of ids; None if these are texts."""
    found: Any = getattr(tokens, "convert_ids_to_tokens", getattr(tokens, "tokens", None))
    return found if callable(found) else None


def checked(tokens: Any) -> Tokens | None:
    """Return the tokens; raises `KindError` for anything but texts, or a pair of sequences."""
    texts = [x for text in tokens for x in sides(text)] if is_rows(tokens) else sides(tokens)
    for text in texts:
        listed = hasattr(text, "__getitem__") and hasattr(text, "__len__")
        odd = [x for x in text if not isinstance(x, str)] if listed else []
        if odd or not listed or isinstance(text, dict):
            inside = f" with {type(odd[0]).__name__}" if odd else ""
            expected = "a list of texts, or a pair of such lists (source, target)"
            fix = "a tokenizer's convert_ids_to_tokens(ids) gives texts"
            raise build(KindError, "tokens", expected, type(text).__name__ + inside, fix=fix)
    return tokens


def is_rows(tokens: Any) -> bool:
    """Whether tokens are a list of the texts of each row of a batch."""
    listed = isinstance(tokens, list) and bool(tokens)
    return listed and all(isinstance(text, list | tuple) for text in tokens)


def is_pair(tokens: Any) -> bool:
    """Whether tokens are of two sequences: a tuple of two, neither of them a text."""
    two = isinstance(tokens, tuple) and len(tokens) == 2
    return two and all(hasattr(x, "__len__") and not isinstance(x, str) for x in tokens)


def sides(tokens: Any) -> tuple[Any, ...]:
    """The sequences of the tokens: none, one, or source and target."""
    return () if tokens is None else tokens if is_pair(tokens) else (tokens,)


def placed(text: Text, seen: Sequence[bool]) -> Text:
    """Return a text with "" for padding, where as many keys are seen as it has tokens.

    >>> placed(["a", "b"], [False, True, True])
    ['', 'a', 'b']
    """

    def fill(tokens: Sequence[str]) -> Sequence[str]:
        if len(tokens) == len(seen) or len(tokens) != sum(seen):
            return tokens
        left = iter(tokens)
        return [next(left) if one else "" for one in seen]

    sides: Any = text
    return (fill(sides[0]), fill(sides[1])) if is_pair(text) else fill(sides)


def labels(
    tokens: Text | None,
    name: str,
    shape: Sequence[int],
    looks_back: Callable[[], bool],
    sources: Collection[int] = (),
    beside: Collection[str] = (),
    across: bool | None = None,
) -> Labels:
    """Return the labels of a matrix (…, t, s); ``looks_back`` says whether it sees only the past.

    If a row sees only the past or attends across sequences, its label is the token that it
    produces, else its own token. ``sources`` are the lengths that encoders of the recording read:
    one sequence of such a length labels only them. ``beside`` are the names of all modules that
    attended, ``across`` says whether keys came from elsewhere than queries, as far as that was
    seen.
    """
    across = crosses(name, beside, across)
    t, s = shape[-2:]
    if tokens is None:
        return NONE
    if not is_pair(tokens):
        (own,) = sides(tokens)
        if len(own) in sources and not reads_source(name, beside, across):
            return NONE
        return _of_one(tuple(own), across, t, s, looks_back)
    source, target = map(tuple, sides(tokens))
    where, back, fits = side(name), looks_back(), (len(source) == s, len(target) - s in OWN)
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
    """The labels from one sequence: of a self-attention, or of the keys only."""
    of_keys = Labels(None, tokens if len(tokens) == s else None)
    if not one_text(across, (t, s), looks_back) or len(tokens) - s not in OWN:
        return of_keys
    if looks_back():
        return Labels(_produced(tokens[s - t :], t), tokens[:s], True)
    return Labels(tokens, tokens, True) if t == len(tokens) else of_keys


def _produced(tokens: tuple[str, ...], t: int) -> tuple[str, ...]:
    """The token that each of t rows produces after reading ``tokens``; "" for an unknown last."""
    return (*tokens[1:], "")[:t]
