"""The items of a page, each a text, a pair of texts or a picture, with their layers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from intently.core.attention import Attention
from intently.core.matrix import LazyMatrix
from intently.core.matrix.labelling import as_numbers, numbered
from intently.errors import ArgumentError, IntentlyError, KindError, build
from intently.show.inputs import Recording
from intently.show.labels import spaced
from intently.show.page.sides import Picture, Side, Sides, Text, counted

BEFORE = 16
"""Most tokens before the patches of a picture, such as CLS and registers."""

NAMED = 12
"""Tokens that name a text without a name of its own."""


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
        found = re.search(r"\d+", self.name)
        return int(found[0]) if found else 0


@dataclass(frozen=True)
class Item:
    """A text, a pair of texts or a picture, with every layer that attended, and a note."""

    name: str
    sides: tuple[Side, ...]
    layers: tuple[Layer, ...]
    note: str | None = None


Shown: TypeAlias = Recording | Mapping[str, LazyMatrix] | LazyMatrix | Sequence[Item]


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
    if not isinstance(sides, Sequence) or not all(isinstance(x, (Text, Picture)) for x in sides):
        raise build(
            KindError,
            "sides",
            "a list of show.page.Text and show.page.Picture",
            repr(sides)[:60],
            fix='write sides=[show.page.Text(("the", "cat"))]',
        )
    if isinstance(source, LazyMatrix):
        source = {"attention": source}
    if isinstance(source, Sequence) and source and all(isinstance(x, Item) for x in source):
        return list(source)
    heard: list[str] = []
    if isinstance(source, Recording):
        found = list(_recorded(source, heard))
    elif isinstance(source, Mapping) and all(isinstance(m, LazyMatrix) for m in source.values()):
        found = [_Named(str(key), matrix, str(key)) for key, matrix in source.items()]
    else:
        raise build(
            KindError,
            "source",
            "a recording, a lazy matrix, or lazy matrices by name",
            type(source).__name__,
            fix="wrap dense weights: it.Dense(weights)",
        )
    found = [one for one in found if 0 not in one.matrix.shape]
    for one in found:
        if one.matrix.ndim > 4:
            heard.append(
                f"{one.name} is left out: its weights {one.matrix.shape} have more axes than"
            )
            heard[-1] += " (b, h, t, s); pick from them and show A[0]"
    found = [one for one in found if one.matrix.ndim <= 4]
    if not found:
        raise build(
            ArgumentError,
            "source",
            "at least one attention with queries and keys",
            "none",
            "; ".join(heard) or None,
        )
    _check_sides(sides, found)
    rows = max(_rows(one.matrix) for one in found)
    notes = ". ".join(filter(None, [note, *heard])) or None
    return [_item(found, row, rows, name, sides, notes) for row in range(rows)]


def _check_sides(sides: Sequence[Side], found: Sequence[_Named]) -> None:
    """Refuse a side that fits no axis: a page would silently show numbers instead."""
    lengths = sorted({n for one in found for n in one.matrix.shape[-2:]})
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
class _Named:
    name: str
    matrix: LazyMatrix
    module: str
    produced: int | None = None
    across: bool | None = None


def _recorded(source: Recording, heard: list[str]) -> Iterator[_Named]:
    """Yield the matrices of a recording; append the reasons for skipped ones to ``heard``."""
    for name, call in zip(numbered(source.calls), source.calls):
        if call.verified is False:
            heard.append(f"{name} is left out: its weights do not give what the model put out")
            continue
        try:
            matrix = call.matrix()
        except IntentlyError as error:
            heard.append(f"{name} is left out: {error}")
            continue
        t = matrix.shape[-2]
        written = t - call.steps + 1 if call.steps > 1 else None
        written = written if written and written > 0 else None
        yield _Named(name, matrix, call.name, written, call.across)


def _rows(matrix: LazyMatrix) -> int:
    return matrix.shape[0] if matrix.ndim == 4 else 1


def _item(
    found: Sequence[_Named],
    row: int,
    rows: int,
    name: str | None,
    given: Sequence[Side],
    note: str | None,
) -> Item:
    sides = Sides(given, {one.module for one in found})
    layers = []
    for one in found:
        b = _rows(one.matrix)
        if b <= row and b > 1:
            continue
        matrix = _row(one.matrix, row if b > 1 else 0)
        read, keys = sides.of(one.module, matrix, one.produced, one.across)
        apart, texts = matrix.labels
        if apart == getattr(sides.found[read], "tokens", None):
            apart = None
        tokens = as_numbers(texts) if texts and read == keys else None
        layers.append(Layer(one.name, matrix, read, keys, apart, tokens))
    used = tuple(sides.found)
    name = name or _name(used)
    return Item(f"{name} ({row + 1} of {rows})" if rows > 1 else name, used, tuple(layers), note)


def _row(matrix: LazyMatrix, row: int) -> LazyMatrix:
    """Return one batch row of a matrix; heads that share keys still share them."""
    if matrix.ndim < 4 or (matrix.shape[0] == 1 and isinstance(matrix, Attention)):
        return matrix
    if isinstance(matrix, Attention):
        part = Attention(matrix.problem.part((slice(row, row + 1), slice(None))))
        return part.label(*(matrix._each[row] if matrix._each else matrix.labels))
    return matrix[row]


def _name(sides: Sequence[Side]) -> str:
    """Return the first words of the first text, or the number of tokens where none are known."""
    for side in sides:
        if isinstance(side, Text):
            if side.tokens == counted(len(side)):
                return "1 token" if len(side) == 1 else f"{len(side):,} tokens"
            words = "".join(" " * blank + text for text, blank in spaced(side.tokens[:NAMED]))
            return words.strip() + (" …" if len(side) > NAMED else "")
    return "picture"
