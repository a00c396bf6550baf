"""`Table`: rows that sort, filter, print themselves and go to CSV."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

from intently.errors import ArgumentError, MissingLibraryError, build
from intently.foundation.files import replace_file
from intently.observe.recording.coverage import aligned, printable

Row: TypeAlias = dict[str, Any]

SHOWN = 48
"""Rows in a repr; printing shows all."""

WIDE = 80
"""Characters of a printed line, or more if long names leave too few to numbers."""
NUMBERS = 40
"""Characters of a printed line at least that are left to numbers."""


class Table:
    """A tidy table: rows that hold the same columns, and what is ``left_out``, with the reasons.

    It is printed in blocks as wide as a terminal, without columns of nothing but NaN; each block
    repeats the columns that name a row.
    """

    names: ClassVar[tuple[str, ...]] = ()
    """Columns that name a row."""
    place: ClassVar[tuple[str, ...]] = ()
    """Columns that are printed always."""
    words: ClassVar[tuple[str, ...]] = ("layer",)
    """Columns of texts."""
    form: ClassVar[str] = ".3f"
    """The format of numbers."""

    def __init__(
        self, rows: Iterable[Row], columns: Sequence[str], left_out: Mapping[str, str] | None = None
    ) -> None:
        self.columns, self.rows = tuple(columns), tuple(rows)
        self.left_out = dict(left_out or {})

    def sort(self, by: str, *, reverse: bool = False) -> Self:
        """Return the rows ordered by a column, smallest first; NaN comes last either way.

        Numbers in names count as numbers: ``layers.2`` comes before ``layers.10``. Raises
        `ArgumentError` for an unknown column.
        """
        self._check(by)
        known = [row for row in self if not is_missing(row[by])]
        known.sort(key=lambda row: _natural(row[by]), reverse=reverse)
        missing = (row for row in self if is_missing(row[by]))
        return self._of([*known, *missing])

    def filter(self, condition: Callable[[Row], bool] | None = None, /, **columns: Any) -> Self:
        """Return the rows for which ``condition(row)`` holds and ``columns`` have these values.

        Names are patterns: ``filter(layer="encoder.*", head=3)``. No comparison holds for NaN, a
        statistic that a head does not have. Raises `ArgumentError` for an unknown column.
        """
        for name in columns:
            self._check(name)
        kept = (row for row in self if all(_is(row[n], want) for n, want in columns.items()))
        found = [row for row in kept if condition is None or condition(row)]
        return self._of(found)

    def csv(self, path: str | os.PathLike[str]) -> None:
        """Write the table as UTF-8 text separated by commas, a header first, NaN as nothing.

        The file is written whole or not at all. Raises `WriteError` where it cannot be written.
        """
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self.columns)
        writer.writeheader()
        for row in self:
            writer.writerow({n: "" if is_missing(value) else value for n, value in row.items()})
        replace_file(Path(path), text.getvalue().encode())

    def pandas(self) -> Any:
        """Return the table as a pandas DataFrame.

        Raises `MissingLibraryError`, an ImportError, if pandas is not installed.
        """
        try:
            import pandas  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
        except ImportError:
            expected, got = "pandas, which makes data frames", "an environment without it"
            fix = "run pip install pandas, or write .csv(path)"
            raise build(MissingLibraryError, "pandas", expected, got, fix=fix) from None
        return pandas.DataFrame(list(self), columns=list(self.columns))

    def __iter__(self) -> Iterator[Row]:
        return (dict(row) for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, column: str) -> list[Any]:
        """Return the values of a column."""
        self._check(column)
        return [row[column] for row in self.rows]

    def __str__(self) -> str:
        return "\n".join([self._printed(self.rows), *self._below()])

    def __repr__(self) -> str:
        left = len(self) - SHOWN
        if left <= 0:
            return str(self)
        shown = self._printed(self.rows[:SHOWN])
        return "\n".join([shown, f"… {left} rows more: print(table)", *self._below()])

    def _of(self, rows: Iterable[Row]) -> Self:
        """The table with other rows."""
        return type(self)(rows, self.columns, self.left_out)

    def _below(self) -> list[str]:
        """Lines below the printed table."""
        return [f"{written(name)}  left out: {why}" for name, why in self.left_out.items()]

    def _check(self, column: str) -> None:
        if column not in self.columns:
            raise build(ArgumentError, "column", f"one of {', '.join(self.columns)}", repr(column))

    def _printed(self, rows: Sequence[Row]) -> str:
        """The columns with numbers, in blocks; each block names its rows."""
        columns = {
            name: [name, *(written(row[name], self.form) for row in rows)]
            for name in self.columns
            if name in self.place or not all(is_missing(row[name]) for row in rows)
        }
        first = [name for name in columns if name in self.names]

        widths = {name: max(map(len, cells)) + 2 for name, cells in columns.items()}
        wide = max(WIDE + 2, sum(map(widths.__getitem__, first)) + NUMBERS)
        blocks = [first]
        for name in columns:
            if name not in self.names:
                if sum(map(widths.__getitem__, blocks[-1])) + widths[name] > wide:
                    blocks.append(first)
                blocks[-1] = [*blocks[-1], name]
        return "\n\n".join(
            "\n".join(
                aligned(
                    list(zip(*(columns[name] for name in block))),
                    [n for n, name in enumerate(block) if name not in self.words],
                )
            )
            for block in blocks
        )


def _is(value: Any, want: Any) -> bool:
    texts = isinstance(value, str) and isinstance(want, str)
    return value == want or (texts and fnmatchcase(value, want))


def is_missing(value: Any) -> bool:
    """Whether a value is NaN."""
    return isinstance(value, float) and math.isnan(value)


def _natural(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    parts = re.split(r"(\d+)", value)
    return [int(part) if n % 2 else part for n, part in enumerate(parts)]


def written(value: Any, form: str = ".3f") -> str:
    """Return a value of a table as text."""
    if is_missing(value):
        return "–"
    if isinstance(value, float):
        return f"{value:{form}}"
    return printable(str(value))
