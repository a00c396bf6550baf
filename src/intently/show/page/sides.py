"""The two sides of a matrix: texts and pictures, and their assignment to axes."""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from intently.core.matrix import LazyMatrix
from intently.core.matrix.labelling import attends_itself, crosses, side
from intently.foundation.checks import whole_number
from intently.show.pictures import encoded, read

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
        for name, count, least in (
            ("rows", rows, 1),
            ("columns", columns, 1),
            ("before", before, 0),
        ):
            whole_number(count, name, least)
        self.rows, self.columns, self.before = rows, columns, before
        self.address = _address(image)

    def __len__(self) -> int:
        return self.before + self.rows * self.columns

    def described(self) -> dict[str, Any]:
        """Return its description in META."""
        return {
            "kind": "picture",
            "image": self.address,
            "rows": self.rows,
            "columns": self.columns,
            "before": self.before,
        }


Side: TypeAlias = Text | Picture


def _address(image: Any) -> str:
    """A picture as a data: address, PNG, or JPEG where that would be large."""
    from PIL import Image

    shown = Image.fromarray((255 * read(image)).round().astype(np.uint8))
    shown.thumbnail((SIZE, SIZE))
    kind, data = "png", encoded(shown, format="PNG", optimize=True)
    if len(data) > LOSSLESS:
        kind, data = "jpeg", encoded(shown, format="JPEG", quality=90)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def counted(n: int) -> tuple[str, ...]:
    """Return numbers in place of unknown tokens."""
    return tuple(map(str, range(n)))


class Sides:
    """The sides of one item, gathered matrix by matrix.

    ``given`` sides are assigned to every axis of the same length; ``names`` are those of all
    modules that attended.
    """

    def __init__(self, given: Sequence[Side] = (), names: Collection[str] = ()) -> None:
        self.found: list[Side] = list(given)
        self._names = names
        self._stacks: list[str | None] = [None] * len(self.found)

    def of(
        self, name: str, matrix: LazyMatrix, produced: int | None, across: bool | None = None
    ) -> tuple[int, int]:
        """Return the sides of the rows and of the columns of a matrix (…, t, s) of this module.

        Both are the same side where a text attends to itself, even if only its last tokens are
        queries. ``produced`` is the first key that the model wrote; ``across`` says whether keys
        came from elsewhere than queries, None if the name has to tell.
        """
        labels, (t, s) = matrix.labels, matrix.shape[-2:]
        stack = side(name) or ""
        if attends_itself(matrix, crosses(name, self._names, across)):
            own = self._labelled(labels[1], s, stack, produced)
            return own, own
        rows = self._like(t, stack, None)
        columns = None if labels[1] else self._like(s, None, rows)
        if rows is None:
            rows = self._labelled(labels[0], t, stack, None)
        if columns is None:
            columns = self._labelled(labels[1], s, f"{stack} source", None)
        return rows, columns

    def _like(self, n: int, stack: str | None, other: int | None) -> int | None:
        """Return a side of length n: the last of a stack, or the first other than ``other``."""
        fits = [i for i, known in enumerate(self.found) if len(known) == n and i != other]
        if stack is None:
            return next(iter(fits), None)
        return next((i for i in reversed(fits) if self._stacks[i] in (None, stack)), None)

    def _labelled(
        self, labels: Sequence[str] | None, n: int, stack: str, produced: int | None
    ) -> int:
        """Return the side with these tokens, a given one of this length, or a new one."""
        tokens = counted(n) if labels is None else tuple(labels)
        for i, (known, its) in enumerate(zip(self.found, self._stacks, strict=True)):
            own = its in (None, stack) or (labels and stack.endswith("source"))
            same = labels is None or its is None or getattr(known, "tokens", None) == tokens
            if len(known) == n and own and same:
                return i
        self.found.append(Text(tokens, produced))
        self._stacks.append(stack)
        return len(self.found) - 1
