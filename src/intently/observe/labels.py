"""Which tokens label the rows and columns of a matrix: what does not surely fit is not labelled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from intently.attention_matrix import Attention
from intently.biases import Bias
from intently.biases.rule import Given
from intently.errors import KindError, build
from intently.masks import Geometry, Mask, is_plain_causal
from intently.masks.joined import Both

Tokens: TypeAlias = Sequence[str] | tuple[Sequence[str], Sequence[str]]
"""The texts of one sequence, or a pair of such: (source, target) of an encoder and a decoder."""

OWN = (0, 1)
"""Tokens that a decoder's matrix reads are as many as its keys, or one more: the last produced."""

CROSS = ("cross", "encdec", "enc_dec", "encoder_att", "enc_att", "src_att")
"""What the last two parts of a name have where queries and keys are of different sequences."""

BLOCK = 2**22
"""Entries of a mask that are looked at at a time."""

HIDDEN = -1e4
"""What is added to a score so that nothing is left of its weight, or less."""


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
                KindError, "tokens", "a list of texts, or a pair of such lists (source, target)",
                type(texts).__name__ + inside,
                fix="a tokenizer's convert_ids_to_tokens(ids) gives texts",
            )  # fmt: skip
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


def side(name: str) -> str | None:
    """The "encoder" or "decoder" that a module is part of, as its name tells."""
    return next((part for part in name.lower().split(".") if part in ("encoder", "decoder")), None)


def crosses(name: str) -> bool | None:
    """Whether a module attends across two sequences, as its name tells; None where it does not."""
    words = ".".join(name.lower().split(".")[-2:])
    if any(word in words for word in CROSS):
        return True
    return False if "self" in words else None


def reads_source(name: str) -> bool:
    """Whether the keys of a module are an encoder's, as its name tells."""
    return bool(crosses(name)) or side(name) == "encoder"


def labels(
    tokens: Tokens | None,
    name: str,
    shape: Sequence[int],
    looks_back: Callable[[], bool],
    sources: Collection[int] = (),
) -> Labels:
    """Return the labels of a matrix (…, t, s); ``looks_back`` says whether it sees the past alone.

    A row is labelled with the token that it produces where it sees the past alone or attends
    across, else with its own. Tokens of one sequence that are as many as one of ``sources``, the
    lengths that encoders of the recording read, are theirs alone.
    """
    t, s = shape[-2:]
    if tokens is None:
        return NONE
    if not is_pair(tokens):
        (own,) = sides(tokens)
        if len(own) in sources and not reads_source(name):
            return NONE
        return _of_one(tuple(own), crosses(name), t, s, looks_back)
    source, target = map(tuple, sides(tokens))
    where, across, back = side(name), crosses(name), looks_back()
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


def looks_back(matrix: Attention) -> bool:
    """Whether no query sees a later key, and the last query sees the last one.

    What a mask or the tensor of a bias hides counts alike.
    """
    t, s = matrix.shape[-2:]
    g, mask, bias = matrix.problem.geometry, matrix.mask, matrix.problem.bias
    hidden = list(_tensors(bias))
    if t < 2 or not s or (mask is None and not hidden):
        return False
    last = torch.arange(s - 1, s, device=g.device)
    if not bool(_seen(mask, hidden, g, last + t - s, last).any()):
        return False
    if mask is not None and _never_later(mask):
        return True
    leading = (*(bias.tensor for bias in hidden), *_leading(mask, g))
    lead = max(x.shape[:-2].numel() for x in leading)
    rows = torch.arange(t, device=g.device)
    for some in rows.split(max(1, BLOCK // max(1, lead * s))):
        columns = torch.arange(max(0, int(some[0]) + s - t + 1), s, device=g.device)
        later = columns > some[:, None] + s - t
        if bool((_seen(mask, hidden, g, some, columns) & later).any()):
            return False
    return True


def _never_later(mask: Mask) -> bool:
    """Whether a mask is causal, by what it is made of; False where that does not tell."""
    if isinstance(mask, Both):
        return _never_later(mask.left) or _never_later(mask.right)
    return is_plain_causal(mask)


def _tensors(bias: Bias | None) -> Iterator[Given]:
    """The tensors that are added; rules such as `it.alibi` hide nothing."""
    if isinstance(bias, Given):
        yield bias
    elif isinstance(bias, Bias):
        for part in bias.parts:
            if isinstance(part, Bias):
                yield from _tensors(part)


def _leading(mask: Mask | None, g: Geometry) -> Iterator[Tensor]:
    """One entry of the mask, which has its leading axes."""
    if mask is not None:
        one = torch.arange(1, device=g.device)
        yield mask.allow(g, one, one)


def _seen(
    mask: Mask | None, hidden: Sequence[Given], g: Geometry, rows: Tensor, columns: Tensor
) -> Tensor:
    """Which keys some queries see, broadcastable to (…, rows, columns)."""
    found = torch.ones(1, 1, dtype=torch.bool, device=g.device)
    if mask is not None:
        found = mask.allow(g, rows, columns)
    for bias in hidden:
        found = found & (bias.tile(g, rows, columns) > HIDDEN)
    return found
