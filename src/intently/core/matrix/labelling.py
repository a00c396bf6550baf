"""Labels of a matrix: what module names imply, and the names of rows.

Recordings, figures and pages all use this module, so that they cannot disagree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial, reduce
from itertools import pairwise
from operator import and_
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from intently.core.biases import Bias, TensorBias
from intently.core.kernels.problem import Problem
from intently.core.masks import Mask, is_plain_causal
from intently.core.masks.mask import Both
from intently.core.matrix import LazyMatrix

CROSS = re.compile(r"cross(_?att\w*)?|(enc|src)_?(dec|tgt|trg)(_?att\w*)?")
"""Words in the last two parts of a name that mean cross-attention."""

BESIDE = {
    "multihead_attn": ("self_attn",),
    "attn2": ("attn1",),
    "encoder_attn": ("self_attn", "self_attention"),
    "encoder_attention": ("self_attn", "self_attention"),
    "enc_attn": ("self_attn", "self_attention"),
    "enc_attention": ("self_attn", "self_attention"),
    "src_attn": ("self_attn", "self_attention"),
    "src_att": ("self_att", "self_attn"),
}
"""Names that mean it only in a decoder, or beside the self-attention of the same layer."""

BLOCK = 2**22
"""Entries of a mask that are computed at a time."""

HIDDEN = -1e4
"""A bias at or below this leaves a key no weight."""


# --- what the name of a module implies ------------------------------------------------------------


def side(name: str) -> str | None:
    """Return the "encoder" or "decoder" in the name of a module; None for neither."""
    return next((part for part in name.lower().split(".") if part in ("encoder", "decoder")), None)


def crosses(name: str, beside: Collection[str] = (), seen: bool | None = None) -> bool | None:
    """Return whether a module is cross-attention; None if unknown.

    ``seen`` says whether its keys came from elsewhere than its queries; the name decides if not.
    ``beside`` are the names of all modules that attended.

    >>> crosses("decoder.0.cross_attention"), crosses("layers.0.self_attn"), crosses("layers.0")
    (True, False, None)
    >>> crosses("0.multihead_attn"), crosses("0.multihead_attn", beside=["0.self_attn"])
    (None, True)
    >>> crosses("0.enc_attn"), crosses("decoder.0.enc_attn"), crosses("encoder_attention.self")
    (None, True, False)
    """
    if seen is not None:
        return seen
    parts = name.lower().split(".")
    words = [word for part in parts[-2:] for word in _words(part)]
    if any(CROSS.fullmatch(word) for word in words):
        return True
    if "self" in words:
        return False
    around, dot, last = name.rpartition(".")
    own = (f"{around}{dot}{other}" for other in BESIDE.get(last, ()))
    if last in BESIDE and ("decoder" in parts or any(other in beside for other in own)):
        return True
    return None


def _words(part: str) -> list[str]:
    """The words of a part of a name, and their pairs: "enc_dec_attn" has "enc_dec", too."""
    words = part.split("_")
    return [*words, *map("_".join, pairwise(words)), part]


def reads_source(name: str, beside: Collection[str] = (), seen: bool | None = None) -> bool:
    """Return whether the keys of a module come from an encoder: see `crosses`."""
    return bool(crosses(name, beside, seen)) or side(name) == "encoder"


@runtime_checkable
class _Attended(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def index(self) -> int: ...


def numbered(entries: Sequence[_Attended]) -> list[str]:
    """Return the names of entries; a module that attended several times has ``name[i]``."""
    often = {entry.name for entry in entries if entry.index}
    return [f"{e.name}[{e.index}]" if e.name in often else e.name for e in entries]


# --- what the tokens are --------------------------------------------------------------------------


def as_numbers(tokens: Sequence[str]) -> list[int]:
    """Number tokens; equal texts get the same number.

    >>> as_numbers(["the", "cat", "the"])
    [0, 1, 0]
    """
    known: dict[str, int] = {}
    return [known.setdefault(token, len(known)) for token in tokens]


def follows(matrix: LazyMatrix) -> int | None:
    """Return the offset of rows from columns of the same text, in tokens; None for two texts.

    0 if each row is named after its own token, 1 if after the next token, which it produces.
    A square matrix without names counts as one text.

    >>> from intently.core.matrix import Dense
    >>> follows(Dense(torch.eye(2), labels=(("b", "c"), ("a", "b"))))
    1
    """
    rows, columns = matrix.labels
    t, s = matrix.shape[-2:]
    if rows is None or columns is None or t > s:
        return 0 if rows is columns and t == s else None
    for step in (0, 1):
        own = columns[s - t + step :]
        if own and own == rows[: len(own)]:
            return step
    return None


def one_text(across: bool | None, shape: Sequence[int], looks_back: Callable[[], bool]) -> bool:
    """Return whether queries and keys of a matrix (t, s) belong to one text.

    ``across`` is the result of `crosses`; ``looks_back`` tells whether no query sees a later key,
    and is only called if t < s.

    >>> one_text(None, (3, 3), bool), one_text(True, (3, 3), bool), one_text(None, (2, 3), bool)
    (True, False, False)
    """
    t, s = shape
    return not across and (t == s or (t < s and looks_back()))


def attends_itself(matrix: LazyMatrix, across: bool | None = None) -> bool:
    """Return whether rows and columns are one text: by name, labels, or shape and mask.

    >>> from intently.core.matrix import Dense
    >>> attends_itself(Dense(torch.eye(2))), attends_itself(Dense(torch.eye(2)), across=True)
    (True, False)
    >>> attends_itself(Dense(torch.eye(2), labels=(("I", "go"), ("Je", "vais"))))
    False
    """
    named = None not in matrix.labels and matrix.shape[-2] > 1  # one row may be the next token
    if across is None and named and follows(matrix) is None:
        return False
    return one_text(across, matrix.shape[-2:], partial(looks_back, matrix))


def row_name(own: str, writes: str = "") -> str:
    """Return the name of a row: its own token and, in a decoder, the token that it writes.

    >>> row_name("and", "softmax"), row_name("mat")
    ('and (writes softmax)', 'mat')
    """
    return f"{own} (writes {writes})" if writes else own


# --- whether a matrix looks back ------------------------------------------------------------------


def looks_back(matrix: LazyMatrix) -> bool:
    """Return whether no query sees a later key, and the last query sees the last key.

    A mask and the tensor of a bias can hide keys; if only weights are known, 0 is hidden.
    """
    problem: Problem | None = getattr(matrix, "problem", None)  # that of an `Attention`
    t, s = matrix.shape[-2:]
    mask = None if problem is None else problem.mask
    hidden = [] if problem is None else list(tensors(problem.bias))
    if t < 2 or not s or (problem is not None and mask is None and not hidden):
        return False

    def seen(rows: Tensor, columns: Tensor) -> Tensor:
        """Which keys some queries see, broadcastable to (…, rows, columns)."""
        if problem is None:
            return matrix.tile(rows, columns) != 0
        g = problem.geometry
        shown = [bias.tile(g, rows, columns) > HIDDEN for bias in hidden]
        return reduce(and_, shown if mask is None else [mask.allow(g, rows, columns), *shown])

    last = torch.arange(s - 1, s, device=matrix.device)
    at_last = seen(last + t - s, last)
    if not bool(at_last.any()):
        return False
    if mask is not None and _never_later(mask):
        return True
    rows = torch.arange(t, device=matrix.device)
    for some in rows.split(max(1, BLOCK // max(1, at_last.shape[:-2].numel() * s))):
        columns = torch.arange(max(0, int(some[0]) + s - t + 1), s, device=matrix.device)
        later = columns > some[:, None] + s - t
        if bool((seen(some, columns) & later).any()):
            return False
    return True


def _never_later(mask: Mask) -> bool:
    """Return whether a mask is causal, judged by its parts; False if unknown."""
    if isinstance(mask, Both):
        return _never_later(mask.left) or _never_later(mask.right)
    return is_plain_causal(mask)


def tensors(bias: Bias | None) -> Iterator[TensorBias]:
    """Yield the tensors that are added; rules such as `it.alibi` hide nothing."""
    if isinstance(bias, TensorBias):
        yield bias
    elif isinstance(bias, Bias):
        for part in bias.parts:
            if isinstance(part, Bias):
                yield from tensors(part)
