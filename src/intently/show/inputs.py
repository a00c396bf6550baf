"""Chooses one matrix among many, and a token."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol, SupportsIndex, TypeAlias, runtime_checkable

import torch

from intently.errors import ArgumentError, IntentlyError, KindError, RangeError, build, shape_of
from intently.foundation.arrays import Numbers
from intently.foundation.tokens import bare
from intently.matrix import LazyMatrix
from intently.matrix.labelling import numbered
from intently.show.given import PLAIN
from intently.show.labels import visible
from intently.show.reading import check

MENTIONED = 6


class Entry(Protocol):
    """One attention of a recording."""

    @property
    def name(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def verified(self) -> bool | None: ...
    @property
    def across(self) -> bool | None: ...
    @property
    def shape(self) -> tuple[int, ...]: ...

    def matrix(self) -> LazyMatrix:
        """Return its weights (b, h, t, s), labelled where tokens are known."""
        ...


@runtime_checkable
class Recording(Protocol):
    """The interface of a recording of `intently.watch`."""

    @property
    def calls(self) -> Sequence[Entry]: ...


Weights: TypeAlias = LazyMatrix | Numbers
"""A lazy matrix; or weights (…, t, s) as a tensor, an array or nested lists."""

Source: TypeAlias = Weights | Mapping[str, Weights] | Recording
"""A matrix, matrices by name, or a recording."""

Scale: TypeAlias = Literal["shared", "own"]
SCALES = ("shared", "own")
"""Whether the panels of a figure share one scale, or each runs from 0 to its largest weight."""

Choice: TypeAlias = int | str | tuple[str, int] | None
"""A head of a matrix; the name of a matrix of a source, or that and a head; None: their mean."""


def matrices_of(source: object, argument: str = "matrices") -> tuple[dict[str, LazyMatrix], str]:
    """Return the matrices of a mapping or a recording by name, and a note on skipped ones.

    Modules that attended several times appear as ``name[i]``, as in ``seen.summary()``; entries of
    a recording that failed verification are left out. Raises ArgumentError if none is left.
    """
    note = ""
    if isinstance(source, (LazyMatrix, *PLAIN)):
        found = {"": check(source, argument)}
    elif isinstance(source, Mapping):
        found = {str(name): check(A, f"{argument}[{name!r}]") for name, A in source.items()}
    elif isinstance(source, Recording):
        entries = source.calls
        kept = [entry for entry in entries if entry.verified is not False]
        found = {name: entry.matrix() for name, entry in zip(numbered(kept), kept)}
        if len(kept) < len(entries):
            note = f"left out, not verified: {len(entries) - len(kept)} of {len(entries)}"
    else:
        expected = "a matrix, matrices by name, or a recording"
        raise build(KindError, argument, expected, type(source).__name__)
    if not found:
        raise build(ArgumentError, argument, "at least one matrix", "none", note)
    return {name: one_text(matrix) for name, matrix in found.items()}, note


def one_text(matrix: LazyMatrix) -> LazyMatrix:
    """Return the matrix (h, t, s) of the only item of a batch; other matrices as they are."""
    while matrix.ndim > 3 and matrix.shape[0] == 1:
        matrix = matrix[0]
    return matrix


def one_of(
    source: object,
    head: Choice = None,
    argument: str = "matrix",
    read: Callable[[object, str], LazyMatrix] = check,
) -> tuple[LazyMatrix, str]:
    """Return the (t, s) matrix chosen by ``head``, and its name for a title.

    ``source`` is a matrix, or holds matrices by name; ``head`` a head, a name, or both. Without a
    head the mean of all heads is taken, and the name says so. Leading axes of size 1 are dropped.
    Plain numbers must be weights, unless ``read`` accepts others.

    Raises ArgumentError for an ambiguous choice, an unknown name or head, and a batch;
    UnverifiedError for an entry of a recording that failed verification.
    """
    name, origin = "", "A"
    if isinstance(source, Mapping | Recording):
        name, source, head, origin = _named(source, head)
    elif isinstance(head, str | tuple):
        raise build(
            ArgumentError,
            "head",
            "a number, or None for the mean of all heads",
            repr(head),
            "one matrix was passed, and has no names",
        )
    lazy, averaged = _flat(read(source, argument), head, argument, origin)
    return lazy, ", ".join(part for part in (visible(name, 80) if name else "", averaged) if part)


def _named(
    source: Mapping[str, object] | Recording, head: Choice
) -> tuple[str, object, int | None, str]:
    """Return the chosen name, matrix and head, and the expression that gives the matrix."""
    mapped = isinstance(source, Mapping)
    names = list(map(str, source)) if mapped else numbered(source.calls)
    name, number = head if isinstance(head, tuple) and len(head) == 2 else (head, None)
    if not isinstance(name, str):
        name, number = (names[0] if len(names) == 1 else None), name
    if name not in names:
        near = difflib.get_close_matches(str(name), names, MENTIONED, 0.3) if name else []
        shown = ", ".join(map(repr, near or names[:MENTIONED]))
        shown += ", …" if len(names) > MENTIONED and not near else ""
        raise build(
            ArgumentError,
            "head",
            f"a name, or a name and a head, of {shown or 'a module that attended'}",
            repr(head),
            None if names else "the source holds no matrix",
        )
    if mapped:
        return name, source[name], number, f"matrices[{name!r}]"
    entry = source.calls[names.index(name)]
    key = repr(name) if name == entry.name else f"{entry.name!r}, {entry.index}"
    return name, entry.matrix(), number, f"seen[{key}]"


def _flat(
    matrix: LazyMatrix, head: int | None, argument: str, origin: str
) -> tuple[LazyMatrix, str]:
    matrix = one_text(matrix)
    if matrix.ndim > 3 or matrix.ndim < 2:
        raise build(
            ArgumentError,
            argument,
            "shape (t, s), (h, t, s) or (1, h, t, s)",
            shape_of(matrix),
            "one picture shows one sentence, or one beam of a search",
            f"pick one: {origin}[0]",
        )
    h = matrix.shape[0] if matrix.ndim == 3 else 1
    number = None if head is None else among(head, h, "head", "a head")
    if matrix.ndim == 2:
        return matrix, ""
    if number is not None:
        return matrix[number], f"head {number}"
    return matrix.mean_heads(), f"mean of {h} heads" if h > 1 else ""


def whole(value: object) -> int | None:
    """Return a whole number, also of NumPy or torch, as an int; None for anything else and bool.

    >>> whole(torch.tensor(2)), whole(True), whole("2")
    (2, None, None)
    """
    truth = isinstance(value, bool) or getattr(value, "dtype", None) is torch.bool
    if truth or not isinstance(value, SupportsIndex):
        return None
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def among(
    value: object, count: int, argument: str, what: str, kind: type[IntentlyError] = ArgumentError
) -> int:
    """Return a whole number from 0 to ``count`` − 1; raise an error of this kind for others."""
    number = whole(value)
    if number is None or not 0 <= number < count:
        raise build(kind, argument, f"{what} from 0 to {count - 1}", repr(value))
    return number


def place(token: int | str, labels: Iterable[str], argument: str = "token") -> int:
    """Return the position of a token, given by its position or by a unique text.

    Marks that tokenizers put before a word count only where they distinguish tokens.

    >>> place("it", ["▁because", "▁it", "▁was"]), place(-1, "abc")
    (1, 2)

    Raises ArgumentError for a text that does not occur exactly once, RangeError for a position
    outside.
    """
    known = list(labels)
    position = whole(token)
    if position is not None:
        if not -len(known) <= position < len(known):
            raise build(RangeError, argument, f"a position from 0 to {len(known) - 1}", position)
        return position % len(known)
    exact = [n for n, text in enumerate(known) if text == token]
    found = exact or [n for n, text in enumerate(known) if bare(text) == token]
    if len(found) == 1:
        return found[0]
    near = difflib.get_close_matches(str(token), known, MENTIONED, 0.4)
    raise build(
        ArgumentError,
        argument,
        "a position, or the text of a token that occurs once",
        repr(token),
        f"it stands at {', '.join(map(str, found[:12]))}" if found else "there is none",
        f"the nearest are {', '.join(map(repr, near))}" if near and not found else None,
    )
