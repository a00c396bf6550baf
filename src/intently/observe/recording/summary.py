"""`Table`: rows that sort, filter, print themselves, go to CSV; `Summary`: what every head does."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

from torch import Tensor

from intently.core.matrix import LazyMatrix
from intently.core.matrix.patterns import STATISTICS, measure
from intently.errors import ArgumentError, KindError, MissingLibraryError, build
from intently.foundation.files import replace_file
from intently.observe.recording.coverage import aligned, printable

Row: TypeAlias = dict[str, Any]
Source: TypeAlias = tuple[str, LazyMatrix, Tensor | Sequence[Any] | None]

NAMES = "edit", "layer", "head", "key"
"""Columns that name a row."""
WORDS = "edit", "layer", "kind", "changed"
"""Columns of texts."""

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

    form: ClassVar = ".3f"
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
        key = lambda row: (is_missing(row[by]) != reverse, _natural(row[by]))  # noqa: E731
        return self._of(sorted(self, key=key, reverse=reverse))

    def filter(self, condition: Callable[[Row], bool] | None = None, /, **columns: Any) -> Self:
        """Return the rows for which ``condition(row)`` holds and ``columns`` have these values.

        Names are patterns: ``filter(layer="encoder.*", head=3)``. No comparison holds for NaN, a
        statistic that a head does not have. Raises `ArgumentError` for an unknown column.
        """
        for name in columns:
            self._check(name)
        kept = (row for row in self if all(_is(row[n], want) for n, want in columns.items()))
        return self._of(row for row in kept if condition is None or condition(row))

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

    def json(self, path: str | os.PathLike[str]) -> None:
        """Write the rows as a list of JSON objects, NaN as null; raises as `csv` does."""
        rows = [{n: None if is_missing(x) else x for n, x in row.items()} for row in self]
        replace_file(Path(path), json.dumps(rows, indent=1).encode())

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
        return self._printed(len(self))

    def __repr__(self) -> str:
        return self._printed(SHOWN)

    def _of(self, rows: Iterable[Row]) -> Self:
        """The table with other rows."""
        return type(self)(rows, self.columns, self.left_out)

    def _check(self, column: str) -> None:
        if column not in self.columns:
            raise build(ArgumentError, "column", f"one of {', '.join(self.columns)}", repr(column))

    def _printed(self, most: int) -> str:
        """The columns with numbers, in blocks; each block names its rows, of which it has most."""
        columns = {
            name: [name, *(written(row[name], self.form) for row in self.rows[:most])]
            for name in self.columns
            if not self.rows or not all(is_missing(row[name]) for row in self.rows[:most])
        }
        widths = {name: max(map(len, cells)) + 2 for name, cells in columns.items()}
        first = [name for name in columns if name in NAMES]
        wide, blocks = max(WIDE + 2, sum(widths[name] for name in first) + NUMBERS), [first]
        for name in [name for name in columns if name not in NAMES]:
            if sum(widths[name] for name in blocks[-1]) + widths[name] > wide:
                blocks.append(first)
            blocks[-1] = [*blocks[-1], name]
        lines: list[str] = []
        for block in blocks:
            right = [n for n, name in enumerate(block) if name not in WORDS]
            lines += ["", *aligned(list(zip(*(columns[name] for name in block))), right)]
        if len(self) > most:
            lines.append(f"… {len(self) - most} rows more: print(table)")
        below = (f"{written(name)}  left out: {why}" for name, why in self.left_out.items())
        return "\n".join([*lines[1:], *below])


def _is(value: Any, want: Any) -> bool:
    texts = isinstance(value, str) and isinstance(want, str)
    return value == want or (texts and fnmatchcase(value, want))


def is_missing(value: Any) -> bool:
    """Whether a value is NaN."""
    return isinstance(value, float) and math.isnan(value)


def _natural(value: Any) -> Any:
    parts = enumerate(re.split(r"(\d+)", value)) if isinstance(value, str) else ()
    return [int(part) if n % 2 else part for n, part in parts] or value


def written(value: Any, form: str = ".3f") -> str:
    """Return a value of a table as text."""
    if is_missing(value):
        return "–"
    return f"{value:{form}}" if isinstance(value, float) else printable(str(value))


class Summary(Table):
    """A tidy table: one row for each head, one column for each statistic.

    Columns are ``layer``, ``head``, its ``kind`` where a table of heads was given, ``queries``, the
    number that count, and the statistics that
    `intently.core.matrix.patterns.measure` defines. A statistic that a head does not have (no
    tokens known, no query that counts) is NaN. Layers that could not be measured are in
    ``left_out``, by name with the reason, and below the printed table.

    >>> import torch
    >>> from intently.core.matrix import Dense
    >>> A = Dense(torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [1.0, 0.0]]]))
    >>> table = Summary.of([("layers.0", A, None)])
    >>> print(table)
    layer     head  queries  entropy  confidence   sink   self  previous  distance
    layers.0     0        2    0.347       0.750  0.500  0.500     0.500     0.250
    layers.0     1        2    0.000       1.000  1.000  0.000     1.000     0.500
    <BLANKLINE>
    layer     head  divergence
    layers.0     0       0.072
    layers.0     1       0.144
    >>> table.sort("entropy")["head"]
    [1, 0]
    >>> len(table.filter(lambda row: row["previous"] > 0.9))
    1
    """

    @classmethod
    def of(
        cls,
        sources: Iterable[Source],
        *,
        left_out: Mapping[str, str] | None = None,
        changed: Mapping[str, str] | None = None,
        kinds: Mapping[tuple[str, int], str] | None = None,
    ) -> Summary:
        """Measure every head of (name, matrix, tokens or None), each matrix read once.

        A statistic is the mean over all queries that count, of all items and batches. Padding
        (queries that may attend to nothing and, if tokens are known, tokens that no query may see)
        never counts. ``left_out`` are names that have no matrix, with the reasons, ``changed`` what
        changed the weights of some names, ``kinds`` what some heads (name, head) are.

        Raises `KindError` for anything but lazy matrices, `ArgumentError` for tokens of a different
        shape.
        """
        rows = [row for source in sources for row in _rows(*source)]
        names = ["layer", "head", *["kind"] * (kinds is not None), "queries"]
        names += ["changed"] * bool(changed)
        names += [name for name in STATISTICS if any(name in row for row in rows)]
        for row in rows:
            row["changed"] = (changed or {}).get(row["layer"], math.nan)
            row["kind"] = (kinds or {}).get((row["layer"], row["head"]), "–")
        told = ({name: row.get(name, math.nan) for name in names} for row in rows)
        return cls(told, names, left_out)


def _rows(name: str, matrix: LazyMatrix, ids: Tensor | Sequence[Any] | None) -> Iterator[Row]:
    if not isinstance(matrix, LazyMatrix):
        fix = "wrap dense weights: it.Dense(weights)"
        raise build(KindError, "matrix", "a lazy matrix", type(matrix).__name__, fix=fix)
    h = matrix.shape[-3] if matrix.ndim > 2 else 1
    if not h:
        return
    sums = {
        statistic: [x.reshape(-1, h).sum(0).tolist() for x in (average.total, average.count)]
        for statistic, average in measure(matrix, ids).items()
    }
    for head, queries in enumerate(sums["entropy"][1]):
        means = {
            statistic: total[head] / count[head] if count[head] else math.nan
            for statistic, (total, count) in sums.items()
        }
        yield {"layer": name, "head": head, "queries": int(queries), **means}
