"""A matrix as text: a block of shade or colour for each weight, safe for any terminal."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from intently.core.matrix import LazyMatrix
from intently.errors import ArgumentError, build
from intently.show.cells import crowded_limits, limits
from intently.show.inputs import Choice, Source, one_of, whole
from intently.show.labels import JOINERS, right_to_left, unmarked, visible
from intently.show.reading import Pooling, missing, numbers, shown_names, weights

SHADES, STEPS = " ░▒▓█", (0.05, 0.25, 0.5, 0.75)
"""Shades of weights, and the share of the largest from which each stands; below them a blank."""
PALE_TO_DARK = (255, 195, 153, 117, 75, 33, 26, 19)
"""Colours of the 256-colour palette from white to dark blue: the map of the figures."""

MOST = 16
"""Columns whose words are written in full above them, each on a line of its own."""
SHORTEST = 8
"""Characters of such a word, unless it is shorter, that have room at least."""
LARGEST = 200
NARROWEST = 20
LEFT_TO_RIGHT_MARK = "\u200e"


def blocks(
    matrix: Source,
    *,
    head: Choice = None,
    reduce: Pooling = "mean",
    width: int | None = None,
    colour: bool | None = None,
) -> str:
    """Return a (t, s) matrix as lines of text: produced words down, source words across.

    Up to 16 column words stand above their columns, each on a line of its own; more of them, or
    longer ones than fit, are numbered, and a key follows. A weight is one of five shades, or with
    ``colour`` a background of the 256-colour palette and, where there is room, its hundredths from
    5 on. ``width`` counts terminal cells (the terminal's own by default). With ``colour=None``
    colours are used where standard output is a terminal and NO_COLOR is unset. Columns that do not
    fit continue below; more than 200 rows or columns are pooled as ``A.pool(…, reduce)`` does; of
    (h, t, s) ``head`` chooses one, else their mean is drawn; of a recording it is ``"name"`` or
    ``("name", head)``. Control characters in words are made visible and never reach the terminal.

    Raises ArgumentError for an empty matrix and a width under 20.

    >>> import torch
    >>> from intently.core.matrix import Dense
    >>> words = (("Je", "bois"), ("I", "go"))
    >>> print(blocks(Dense(torch.eye(2), labels=words), width=60, colour=False))
         I
         │ go
      Je ██
    bois   ██
         ░ 0.05  ▒ 0.25  ▓ 0.5  █ 0.75 and more
    """
    given = shutil.get_terminal_size().columns if width is None else width
    width = whole(given)
    if width is None or width < NARROWEST:
        raise build(ArgumentError, "width", f"at least {NARROWEST} terminal cells", repr(given))
    colour = _terminal_has_colour() if colour is None else colour
    lazy, chosen = one_of(matrix, head)
    notes = [chosen] if chosen else []
    if max(lazy.shape) > LARGEST:
        grid, pooled = _pooled(lazy, width, reduce)
        notes.append(pooled)
    else:
        grid = _whole(lazy, width)
    painter = _Painter(grid.top, colour)
    lines = "\n\n".join("\n".join(band) for band in grid.bands(painter, width)).split("\n")
    indent = " " * min(grid.margin + 1, width - 17)
    if colour:
        lines.append(indent + painter.legend())
    else:
        notes.insert(0, painter.legend())
    for note in (*notes, missing(grid.values).replace("hatched", "?")):
        lines += _wrapped(note, width, indent)
    return "\n".join([*lines, *_wrapped(grid.key, width)])


def cell_len(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    from rich.cells import cell_len

    return cell_len(text)


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Break a text into lines of ``width`` terminal cells, between items joined by two spaces."""
    between = "  " if "  " in text else " "
    lines: list[str] = []
    for item in filter(None, text.split(between)):
        longer = f"{lines[-1]}{between}{item}" if lines else ""
        if lines and cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(indent + item)
    return [_anchored(line) for line in lines]


def _terminal_has_colour() -> bool:
    told = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return sys.stdout is not None and sys.stdout.isatty() and not told


def _whole(matrix: LazyMatrix, width: int) -> _Grid:
    rows, columns = shown_names(matrix, unmarked)
    margin = min(max(cell_len(visible(row)) for row in rows), width // 3)
    words = tuple(map(visible, columns))
    upright, key = tuple(map(_characters, words)), ""
    short = all(len(letters) == 1 or word.isdecimal() for letters, word in zip(upright, words))
    if not short and not _stairs(words, width - margin - 1):
        upright = tuple(list(str(n)) for n in range(1, len(columns) + 1))
        key = "  ".join(f"{n} {_cut(word, width - 5)}" for n, word in enumerate(words, 1))
    left = tuple(fitted(visible(row), margin) for row in rows)
    values = weights(matrix)
    stairs = () if short or key else words
    return _Grid(values, left, upright, margin, limits(values)[1], key, stairs)


def _stairs(words: Sequence[str], room: int) -> bool:
    """Return whether each word has room right of its column's left edge."""
    cell = 3 if 3 * len(words) <= room else 2
    ends = (n * cell + min(cell_len(word), SHORTEST) for n, word in enumerate(words))
    return len(words) <= MOST and max(ends) <= room


def _pooled(matrix: LazyMatrix, width: int, reduce: Pooling) -> tuple[_Grid, str]:
    t, s = matrix.shape
    margin = len(str(t))
    high, wide = min(t, 32), min(s, (width - margin - 1) // 2)
    with torch.no_grad():
        values = numbers(matrix.pool(high, wide, reduce))
    left = tuple(f"{-(-i * t // high):>{margin}}" for i in range(high))
    top = crowded_limits(values)[1]
    note = f"{t} × {s} weights, each block the {reduce} of about {t / high:.3g} × {s / wide:.3g}"
    return _Grid(values, left, ((),) * wide, margin, top, ""), note


@dataclass(frozen=True)
class _Grid:
    values: np.ndarray
    left: tuple[str, ...]
    upright: tuple[Sequence[str], ...]
    margin: int
    top: float
    key: str
    stairs: tuple[str, ...] = ()

    def bands(self, painter: _Painter, width: int) -> list[list[str]]:
        """Return the lines of each band of columns that fits the width."""
        s = self.values.shape[1]
        room = width - self.margin - 1
        cell = 3 if painter.colour and self.key + "".join(map("".join, self.upright)) else 2
        cell = cell if s * cell <= room else 2
        each = max(1, room // cell)
        return [
            (self._stairs(cell, room) if self.stairs else self._header(first, first + each, cell))
            + [
                _anchored(f"{name} {painter.row(row[first : first + each], cell)}".rstrip())
                for name, row in zip(self.left, self.values, strict=True)
            ]
            for first in range(0, s, each)
        ]

    def _stairs(self, cell: int, room: int) -> list[str]:
        """Return the words of a single band, one a line, above lines down to their columns."""
        steps = [" " * (self.margin + 1) + _padded("│", cell) * n for n in range(len(self.stairs))]
        words = (_cut(word, room - n * cell) for n, word in enumerate(self.stairs))
        return [_anchored(step + word) for step, word in zip(steps, words)]

    def _header(self, first: int, last: int, cell: int) -> list[str]:
        columns = self.upright[first:last]
        height = max(map(len, columns))
        tall = [[" "] * (height - len(column)) + [*column] for column in columns]
        rows = ["".join(_padded(letter, cell) for letter in level) for level in zip(*tall)]
        return [_anchored(" " * (self.margin + 1) + row.rstrip(" ")) for row in rows]


@dataclass(frozen=True)
class _Painter:
    """Draws weights up to ``top`` as shades, or as coloured cells with their hundredths."""

    top: float
    colour: bool

    def row(self, values: np.ndarray, cell: int) -> str:
        if self.colour:
            return "".join(self._coloured(value, cell) for value in values) + "\x1b[0m"
        return "".join(self._shade(value) * cell for value in values)

    def _shade(self, value: float) -> str:
        if not np.isfinite(value):
            return "?"
        return SHADES[sum(value / self.top >= step for step in STEPS)]

    def _coloured(self, value: float, cell: int) -> str:
        if not np.isfinite(value):
            return f"\x1b[0m{'?' * cell}"
        level = round(min(max(value / self.top, 0.0), 1.0) * (len(PALE_TO_DARK) - 1))
        hundredths = round(100 * value)
        text = f"{hundredths:>{cell}}" if cell > 2 and 5 <= hundredths < 1000 else " " * cell
        ink = 231 if level > 4 else 16
        return f"\x1b[48;5;{PALE_TO_DARK[level]};38;5;{ink}m{text}"

    def legend(self) -> str:
        if self.colour:
            scale = "".join(f"\x1b[48;5;{colour}m " for colour in PALE_TO_DARK)
            return f"0 {scale}\x1b[0m {self.top:.3g}"
        steps = zip(SHADES[1:], STEPS, strict=True)
        return "  ".join(f"{shade} {step * self.top:.3g}" for shade, step in steps) + " and more"


def _characters(text: str) -> list[str]:
    """Split a text into characters as a reader counts them: marks stay with their letter."""
    found: list[str] = []
    for character in text:
        joined = character in JOINERS or unicodedata.category(character) in {"Mn", "Me", "Mc"}
        if found and (joined or found[-1].endswith("\u200d")):
            found[-1] += character
        else:
            found.append(character)
    return found


def _padded(character: str, cell: int) -> str:
    return character + _mark(character) + " " * (cell - cell_len(character))


def _cut(text: str, width: int) -> str:
    """Return the text in at most ``width`` terminal cells."""
    from rich.cells import set_cell_size

    short = cell_len(text) <= width
    return text if short else set_cell_size(text, width - 1).rstrip() + "…"


def fitted(text: str, width: int) -> str:
    """Return the text flush right in ``width`` terminal cells, cut where it is longer."""
    text = _cut(text, width)
    return " " * (width - cell_len(text)) + text + _mark(text)


def _anchored(line: str) -> str:
    """Keep a line with right-to-left words running from left to right in terminals that reorder."""
    return _mark(line) + line


def _mark(text: str) -> str:
    return LEFT_TO_RIGHT_MARK if right_to_left(text) else ""


# --- a small labelled matrix as a table -----------------------------------------------------------

TABLE, WIDEST, LABEL = 16, 100, 14
"""Most rows and columns, the widest line in terminal cells, and the widest label."""
COMPUTED = 2**20
"""Most weights that are computed unasked."""


class TextTable(NamedTuple):
    """Weights (t, s) with a label for every row and column."""

    rows: list[str]
    columns: list[str]
    weights: np.ndarray


def table_of(matrix: LazyMatrix) -> TextTable | None:
    """Return the table of a labelled matrix (t, s), None if it is large or has no labels."""
    *lead, t, s = matrix.shape
    if any(n != 1 for n in lead) or not 0 < t <= TABLE or not 0 < s <= TABLE:
        return None
    one = matrix[(0,) * len(lead)] if lead else matrix
    if one.labels == (None, None) or one._row_size() * t > COMPUTED:
        return None
    with torch.no_grad():
        weights = numbers(one.dense())
    rows, columns = (
        [visible(label, LABEL) for label in names or map(str, range(n))]
        for names, n in zip(one.labels, (t, s))
    )
    return TextTable(rows, columns, weights)


def text_table(matrix: LazyMatrix) -> str:
    """Return the table of a small labelled matrix, a line for each row; "" if there is none.

    >>> from intently.core.matrix import Dense
    >>> print(text_table(Dense([[0.25, 0.75], [1, 0]], (("it", "is"), ("the", "road")))))
         the  road
    it  0.25  0.75
    is  1.00  0.00
    """
    table = table_of(matrix)
    if table is None:
        return ""
    margin = max(map(cell_len, table.rows))
    widths = [max(4, cell_len(name)) for name in table.columns]
    if margin + sum(widths) + 2 * len(widths) > WIDEST:
        return ""
    told = [["", *table.columns]]
    for name, row in zip(table.rows, table.weights):
        told.append([name + " " * (margin - cell_len(name)), *(f"{w:.2f}" for w in row)])
    return "\n".join(
        "  ".join(fitted(cell, width) for cell, width in zip(line, (margin, *widths)))
        for line in told
    )
