"""What figures are handed: lazy matrices or plain numbers, one matrix among many, and tokens."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, SupportsIndex, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from intently.core.matrix import Dense, LazyMatrix
from intently.core.matrix.labelling import numbered
from intently.errors import ArgumentError, IntentlyError, KindError, RangeError, build, shape_of
from intently.foundation.arrays import Numbers, as_tensor
from intently.foundation.tokens import bare
from intently.show.labels import visible

# --- lazy matrices and plain numbers --------------------------------------------------------------

PLAIN = (Tensor, np.ndarray, np.generic, list, tuple, range)
"""The types of plain numbers."""


class Plain(Dense):
    """Plain numbers (…, t, s), which may or may not be weights."""

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        return Plain(self.weights[index])

    def mean_heads(self) -> LazyMatrix:
        """Return the mean over axis −3, plain numbers too."""
        return Plain(self.weights.mean(-3), self.labels)

    def no_weights(self, part: bool = False) -> str:
        """Return why the numbers are not attention weights; "" if they are.

        Weights are not below 0, and a row sums to 1 or is all zeros; with ``part`` it may sum to
        less, as in a part of a matrix. NaN does not count.
        """
        w = self.weights.detach()
        if bool(w.isinf().any()):
            return "one of them is infinite"
        w = torch.where(w.isfinite(), w, 0).double()
        rough = 1e-3 if self.dtype.itemsize >= 4 else 2e-2
        lowest, sums = float(w.min()), w.sum(-1)
        if lowest < 0:
            return f"the lowest number is {lowest:.3g}".replace("-", "−")
        wrong = sums[(sums > 1 + rough) | ((sums < 1 - rough) & (sums > 0) & (not part))]
        return f"a row sums to {float(wrong[0]):.3g}" if len(wrong) else ""


def check(value: object, argument: str = "matrix", numbers: bool = False) -> LazyMatrix:
    """Return what can be drawn: a lazy matrix unchanged, an array or nested lists as `Plain`.

    Raises KindError for anything but real numbers, ArgumentError for fewer than two axes, for an
    empty matrix, and for plain numbers that cannot be weights, unless any ``numbers`` will do.
    """
    if isinstance(value, LazyMatrix):
        matrix = value
    elif isinstance(value, PLAIN):
        tensor = as_tensor(value, argument)
        if tensor.ndim < 2:
            raise build(ArgumentError, argument, "shape (…, t, s)", shape_of(tensor))
        matrix = Plain(tensor)
        why = "" if numbers or not tensor.numel() else matrix.no_weights(part=True)
        if why:
            raise build(
                ArgumentError,
                argument,
                "attention weights, not below 0, at most 1 in a row together",
                why,
                "these numbers are not weights",
                "scores become weights by .softmax(-1); intently.show.heatmap draws any numbers",
            )
    else:
        expected = "a lazy matrix, or weights as a tensor, an array or nested lists"
        raise build(KindError, argument, expected, type(value).__name__)
    if 0 in tuple(matrix.shape):
        raise build(
            ArgumentError,
            argument,
            "at least one query and one key, shape (…, t, s)",
            shape_of(matrix),
            "an empty matrix has nothing to draw",
            "leave out the sentences that have no words",
        )
    return matrix


def as_numbers(value: Numbers, argument: str, beside: object = None) -> Tensor:
    """Return plain numbers as a tensor; lists and arrays get the dtype and device of ``beside``.

    A tensor keeps its dtype and device, and a module may refuse it. Raises KindError for anything
    but real numbers.
    """
    if not isinstance(value, PLAIN):
        raise build(KindError, argument, "a tensor, an array or nested lists", type(value).__name__)
    like = next(beside.parameters(), None) if isinstance(beside, nn.Module) else None
    found = as_tensor(value, argument, like)
    return found if like is None or isinstance(value, Tensor) else found.to(like.dtype)


def one_item(value: Numbers, argument: str, axes: int, beside: object = None) -> Tensor:
    """Return `as_numbers` of one item without leading axes of size 1: (t, c) of (1, t, c)."""
    found = as_numbers(value, argument, beside)
    while found.ndim > axes and len(found) == 1:
        found = found[0]
    return found


@contextmanager
def evaluating(block: object) -> Iterator[None]:
    """Put a module and its parts into evaluation mode, then each back as it was."""
    parts = block.modules() if isinstance(block, nn.Module) else ()
    training = [part for part in parts if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True


def as_truths(value: Any, argument: str) -> Any:
    """Return an array or nested lists of booleans as a tensor; anything else unchanged.

    Raises KindError for lists and arrays of other types.
    """
    if not isinstance(value, np.ndarray | list | tuple):
        return value
    try:
        truths = np.array(value)
    except ValueError:
        truths = np.empty(0, object)
    if truths.dtype != bool:
        got = "a ragged list" if truths.dtype == object else f"dtype {truths.dtype}"
        expected, cause = "booleans, in rows of one length", "True means attend"
        raise build(KindError, argument, expected, got, cause)
    return torch.from_numpy(truths)


# --- one among many -------------------------------------------------------------------------------

MENTIONED = 6


class EntryLike(Protocol):
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
    def changed(self) -> str | None: ...
    @property
    def shape(self) -> tuple[int, ...]: ...

    def matrix(self) -> LazyMatrix:
        """Return its weights (b, h, t, s), labelled where tokens are known."""
        ...


@runtime_checkable
class RecordingLike(Protocol):
    """The interface of a recording of `intently.watch`."""

    @property
    def calls(self) -> Sequence[EntryLike]: ...


Weights: TypeAlias = LazyMatrix | Numbers
"""A lazy matrix; or weights (…, t, s) as a tensor, an array or nested lists."""

Source: TypeAlias = Weights | Mapping[str, Weights] | RecordingLike
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
    elif isinstance(source, RecordingLike):
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
    source: object, head: Choice = None, argument: str = "matrix", numbers: bool = False
) -> tuple[LazyMatrix, str]:
    """Return the (t, s) matrix chosen by ``head``, and its name for a title.

    ``source`` is a matrix, or holds matrices by name; ``head`` a head, a name, or both. Without a
    head the mean of all heads is taken, and the name says so. Leading axes of size 1 are dropped.
    Plain numbers must be weights, unless any ``numbers`` will do.

    Raises ArgumentError for an ambiguous choice, an unknown name or head, and a batch;
    UnverifiedError for an entry of a recording that failed verification.
    """
    name, origin = "", "A"
    if isinstance(source, Mapping | RecordingLike):
        name, source, head, origin = _named(source, head)
    elif isinstance(head, str | tuple):
        raise build(
            ArgumentError,
            "head",
            "a number, or None for the mean of all heads",
            repr(head),
            "one matrix was passed, and has no names",
        )
    lazy, averaged = _flat(check(source, argument, numbers), head, argument, origin)
    return lazy, ", ".join(part for part in (visible(name, 80) if name else "", averaged) if part)


def _named(
    source: Mapping[str, object] | RecordingLike, head: Choice
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
