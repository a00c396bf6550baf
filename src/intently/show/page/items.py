"""The items of a page, each a text, a pair of texts or a picture, with their layers."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from intently.core.attention import Attention
from intently.core.matrix import LazyMatrix
from intently.core.matrix.labelling import as_numbers, attends_itself, crosses, numbered
from intently.core.matrix.labelling import side as stack_of
from intently.errors import ArgumentError, IntentlyError, KindError, build
from intently.foundation.checks import whole_number
from intently.show.inputs import RecordingLike
from intently.show.labels import spaced
from intently.show.pictures import encoded, read

BEFORE = 16
"""Most tokens before the patches of a picture, such as CLS and registers."""

NAMED = 12
"""Tokens that name a text without a name of its own."""

SIZE = 768
"""Most pixels along the longer edge of a picture in a page."""

LOSSLESS = 300_000
"""Bytes of PNG up to which a picture stays PNG; larger ones become JPEG."""


@dataclass(frozen=True)
class Text:
    """A text as tokens; those from ``produced`` on were written by the model.

    >>> len(Text(("the", "cat")))
    2
    """

    tokens: tuple[str, ...]
    produced: int | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def described(self) -> dict[str, Any]:
        """Return its description in META."""
        return {"kind": "text", "tokens": list(self.tokens), "produced": self.produced}


class Picture:
    """A picture read as rows × columns patches, after ``before`` tokens such as CLS.

    ``image`` is a file, a PIL image, or an array (height, width), (height, width, 3 or 4) of bytes
    or of numbers from 0 to 1. Raises `ArgumentError` for other shapes and numbers, `DataError` for
    a file without a picture.

    >>> len(Picture(np.zeros((32, 32, 3)), rows=4, columns=4, before=1))
    17
    """

    def __init__(self, image: Any, rows: int, columns: int, before: int = 0) -> None:
        whole_number(rows, "rows", 1)
        whole_number(columns, "columns", 1)
        whole_number(before, "before", 0)
        self.rows, self.columns, self.before = rows, columns, before
        self.address = _address(image)

    def __len__(self) -> int:
        return self.before + self.rows * self.columns

    def described(self) -> dict[str, Any]:
        """Return its description in META."""
        size = {"rows": self.rows, "columns": self.columns, "before": self.before}
        return {"kind": "picture", "image": self.address, **size}


Side: TypeAlias = Text | Picture


@dataclass(frozen=True)
class Layer:
    """One attention of an item: ``matrix`` (t, s), (h, t, s) or (1, h, t, s).

    ``rows`` and ``columns`` index the sides of the item. ``row_labels`` name what rows produce and
    ``tokens`` number the tokens of self-attention; both may be unknown.
    """

    name: str
    matrix: LazyMatrix
    rows: int
    columns: int
    row_labels: tuple[str, ...] | None = None
    tokens: Sequence[int] | None = None

    @property
    def heads(self) -> int:
        """The number of heads."""
        return self.matrix.shape[-3] if self.matrix.ndim > 2 else 1

    @property
    def depth(self) -> int:
        """The first number in the name, the index of the layer in its stack; 0 without one."""
        digits = re.search(r"\d+", self.name)
        return int(digits[0]) if digits else 0


@dataclass(frozen=True)
class Item:
    """A text, a pair of texts or a picture, with every layer that attended, and a note."""

    name: str
    sides: tuple[Side, ...]
    layers: tuple[Layer, ...]
    note: str | None = None

    def described(self, entry: Callable[[Layer], dict[str, Any]]) -> dict[str, Any]:
        """Return its description in META; ``entry`` describes a layer."""
        return {
            "name": self.name,
            "note": self.note,
            "sides": [side.described() for side in self.sides],
            "entries": [entry(layer) for layer in self.layers],
        }


Shown: TypeAlias = RecordingLike | Mapping[str, LazyMatrix] | LazyMatrix | Sequence[Item]


def items_of(
    source: Shown, name: str | None = None, sides: Sequence[Side] = (), note: str | None = None
) -> list[Item]:
    """Return an item for each batch row of a recording, of matrices by name, or of one matrix.

    ``sides`` are texts and pictures, assigned to every axis of the same length. A list of items is
    returned unchanged. Raises `KindError` for anything else, `ArgumentError` if there is nothing to
    show, and for a side that fits no axis.

    >>> import torch
    >>> from intently.core.matrix import Dense
    >>> words = ("the", "cat")
    >>> A = Dense(torch.eye(2)).label(words, words)
    >>> (item,) = items_of({"layer.0": A})
    >>> item.name, item.sides, item.layers[0].columns
    ('the cat', (Text(tokens=('the', 'cat'), produced=None),), 0)
    """
    if not isinstance(sides, Sequence) or not all(isinstance(x, Side) for x in sides):
        expected = "a list of show.page.Text and show.page.Picture"
        fix = 'write sides=[show.page.Text(("the", "cat"))]'
        raise build(KindError, "sides", expected, repr(sides)[:60], fix=fix)
    if isinstance(source, LazyMatrix):
        source = {"attention": source}
    if isinstance(source, Sequence) and source and all(isinstance(x, Item) for x in source):
        return list(source)
    told: list[str] = []
    if isinstance(source, RecordingLike):
        every = list(_recorded(source, told))
    elif isinstance(source, Mapping) and all(isinstance(m, LazyMatrix) for m in source.values()):
        every = [_NamedMatrix(str(key), matrix, str(key)) for key, matrix in source.items()]
    else:
        expected = "a recording, a lazy matrix, or lazy matrices by name"
        fix = "wrap dense weights: it.Dense(weights)"
        raise build(KindError, "source", expected, type(source).__name__, fix=fix)
    named = [one for one in every if 0 not in one.matrix.shape]
    if not named:
        expected = "at least one attention with queries and keys"
        raise build(ArgumentError, "source", expected, "none", "; ".join(told) or None)
    _check_sides(sides, named)
    wide = max((one.lead for one in named), key=math.prod)
    notes = ". ".join(filter(None, [note, *told])) or None
    return [_item(named, row, wide, name, sides, notes) for row in range(math.prod(wide))]


def _check_sides(sides: Sequence[Side], named: Sequence[_NamedMatrix]) -> None:
    """Refuse a side that fits no axis: a page would silently show numbers instead."""
    lengths = sorted({n for one in named for n in one.matrix.shape[-2:]})
    for at, side in enumerate(sides):
        if len(side) in lengths:
            continue
        got, fix = f"a {type(side).__name__} of {len(side):,}", None
        if isinstance(side, Picture):
            patches = side.rows * side.columns
            before = f" + {side.before}" if side.before else ""
            got += f" ({side.rows} × {side.columns}{before})"
            left = min((n - patches for n in lengths if n > patches), default=0)
            if 0 < left <= BEFORE:
                fix = f"a class token or registers stand before the patches: before={left}"
        listed = ", ".join(f"{n:,}" for n in lengths[:6]) + (", …" if len(lengths) > 6 else "")
        raise build(
            ArgumentError, f"sides[{at}]", f"as many tokens as an axis has: {listed}", got, fix=fix
        )


@dataclass(frozen=True)
class _NamedMatrix:
    """A matrix, the module that it is of, the first key that the model wrote, and if it crosses."""

    name: str
    matrix: LazyMatrix
    module: str
    produced: int | None = None
    across: bool | None = None

    @property
    def lead(self) -> tuple[int, ...]:
        """The axes before the heads: the batch, and what else is before them."""
        return self.matrix.shape[:-3]

    def row(self, row: int) -> LazyMatrix:
        """Return one row of the leading axes; heads that share keys still share them."""
        matrix = self.matrix
        while matrix.ndim > 4:
            inner = math.prod(matrix.shape[1:-3])
            matrix, row = matrix[row // inner], row % inner
        if matrix.ndim < 4 or (matrix.shape[0] == 1 and isinstance(matrix, Attention)):
            return matrix
        if isinstance(matrix, Attention):
            part = Attention(matrix.problem.part((slice(row, row + 1), slice(None))))
            return part.label(*(matrix._each[row] if matrix._each else matrix.labels))
        return matrix[row]


def _recorded(source: RecordingLike, told: list[str]) -> Iterator[_NamedMatrix]:
    """Yield the matrices of a recording; append what is to be said of them to ``told``."""
    for name, call in zip(numbered(source.calls), source.calls):
        if call.verified is False:
            told.append(f"{name} is left out: its weights do not give what the model put out")
            continue
        try:
            matrix = call.matrix()
        except IntentlyError as error:
            told.append(f"{name} is left out: {error}")
            continue
        if call.changed is not None:
            told.append(f"{name}: {call.changed} changed its weights before they met the values")
        written = matrix.shape[-2] - call.steps + 1 if call.steps > 1 else 0
        yield _NamedMatrix(name, matrix, call.name, written if written > 0 else None, call.across)


def _item(
    named: Sequence[_NamedMatrix],
    row: int,
    wide: tuple[int, ...],
    name: str | None,
    given: Sequence[Side],
    note: str | None,
) -> Item:
    sides, rows = ItemSides(given, {one.module for one in named}), math.prod(wide)
    layers = []
    for one in named:
        n = math.prod(one.lead)
        at = row // (rows // n) if wide[: len(one.lead)] == one.lead else row if n > 1 else 0
        if at >= n:
            continue
        matrix = one.row(at)
        queries, keys = sides.of(one.module, matrix, one.produced, one.across)
        labels, texts = matrix.labels
        if labels == getattr(sides.every[queries], "tokens", None):
            labels = None
        tokens = as_numbers(texts) if texts and queries == keys else None
        layers.append(Layer(one.name, matrix, queries, keys, labels, tokens))
    used = tuple(sides.every)
    name = name or _name(used)
    return Item(f"{name} ({row + 1} of {rows})" if rows > 1 else name, used, tuple(layers), note)


class ItemSides:
    """The sides of one item, gathered matrix by matrix.

    ``given`` sides are assigned to every axis of the same length; ``names`` are those of all
    modules that attended.
    """

    def __init__(self, given: Sequence[Side] = (), names: Collection[str] = ()) -> None:
        self.every: list[Side] = list(given)
        self._names = names
        self._stacks: list[str | None] = [None] * len(self.every)

    def of(
        self, name: str, matrix: LazyMatrix, produced: int | None, across: bool | None = None
    ) -> tuple[int, int]:
        """Return the sides of the rows and of the columns of a matrix (…, t, s) of this module.

        Both are the same side where a text attends to itself, even if only its last tokens are
        queries. ``produced`` is the first key that the model wrote; ``across`` says whether keys
        came from elsewhere than queries, None if the name has to tell.
        """
        labels, (t, s) = matrix.labels, matrix.shape[-2:]
        stack = stack_of(name) or ""
        if attends_itself(matrix, crosses(name, self._names, across)):
            both = self._labelled(labels[1], s, stack, produced)
            return both, both
        rows = self._like(t, stack, None)
        columns = None if labels[1] else self._like(s, None, rows)
        if rows is None:
            rows = self._labelled(labels[0], t, stack, None)
        if columns is None:
            columns = self._labelled(labels[1], s, f"{stack} source", None)
        return rows, columns

    def _like(self, n: int, stack: str | None, other: int | None) -> int | None:
        """Return a side of length n: the last of a stack, or the first other than ``other``."""
        fits = [i for i, known in enumerate(self.every) if len(known) == n and i != other]
        if stack is None:
            return next(iter(fits), None)
        return next((i for i in reversed(fits) if self._stacks[i] in (None, stack)), None)

    def _labelled(
        self, labels: Sequence[str] | None, n: int, stack: str, produced: int | None
    ) -> int:
        """Return the side with these tokens, a given one of this length, or a new one."""
        tokens = counted(n) if labels is None else tuple(labels)
        for i, (known, its) in enumerate(zip(self.every, self._stacks, strict=True)):
            near = its in (None, stack) or (labels and stack.endswith("source"))
            same = labels is None or its is None or getattr(known, "tokens", None) == tokens
            if len(known) == n and near and same:
                return i
        self.every.append(Text(tokens, produced))
        self._stacks.append(stack)
        return len(self.every) - 1


def counted(n: int) -> tuple[str, ...]:
    """Return numbers in place of unknown tokens."""
    return tuple(map(str, range(n)))


def _name(sides: Sequence[Side]) -> str:
    """Return the first words of the first text, or the number of tokens where none are known."""
    for side in sides:
        if isinstance(side, Text):
            if side.tokens == counted(len(side)):
                return "1 token" if len(side) == 1 else f"{len(side):,} tokens"
            words = "".join(" " * blank + text for text, blank in spaced(side.tokens[:NAMED]))
            return words.strip() + (" …" if len(side) > NAMED else "")
    return "picture"


def _address(image: Any) -> str:
    """A picture as a data: address, PNG, or JPEG where that would be large."""
    from PIL import Image

    shown = Image.fromarray((255 * read(image)).round().astype(np.uint8))
    shown.thumbnail((SIZE, SIZE))
    kind, data = "png", encoded(shown, format="PNG", optimize=True)
    if len(data) > LOSSLESS:
        kind, data = "jpeg", encoded(shown, format="JPEG", quality=90)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
