"""What every head does: `Summary`, one row for each, and its alignment error over a corpus."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from torch import Tensor

from intently.corpora import Alignment, alignment_error_rate
from intently.errors import ArgumentError, KindError, MissingLibraryError, build
from intently.matrix import LazyMatrix
from intently.matrix.patterns import STATISTICS, links, measure
from intently.observe.recording.coverage import printable

Row: TypeAlias = dict[str, Any]
Source: TypeAlias = tuple[str, LazyMatrix, Tensor | Sequence[int] | None]

PLACE = ("layer", "item", "head", "queries")
ROW = ("layer", "item", "head")
"""What names a row."""

SHOWN = 48
"""Rows in a repr; printing shows all."""

WIDE = 80
"""Characters of a printed line, or more if long names leave too few to numbers."""
NUMBERS = 40
"""Characters of a printed line at least that are left to numbers."""


class Summary:
    """A tidy table: one row for each head, one column for each statistic.

    Columns are ``layer``, ``head`` (and ``item``, if batch items are separate), ``queries``, the
    number that count, and the statistics that `intently.matrix.patterns.measure` defines. A
    statistic that a head does not have (no tokens known, no query that counts) is NaN. Layers that
    could not be measured are in ``left_out``, by name with the reason, and below the printed table.
    The table is printed in blocks as wide as a terminal, without columns of nothing but NaN.

    >>> import torch
    >>> from intently.matrix import Dense
    >>> A = Dense(torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [1.0, 0.0]]]))
    >>> table = Summary.of([("layers.0", A, None)])
    >>> print(table)
    layer     head  queries  entropy  confidence   sink   self  previous  distance
    layers.0     0        2    0.347       0.750  0.750  0.750     0.500     0.250
    layers.0     1        2    0.000       1.000  1.000  0.500     1.000     0.500
    <BLANKLINE>
    layer     head  divergence
    layers.0     0       0.072
    layers.0     1       0.144
    >>> table.sort("entropy")["head"]
    [1, 0]
    >>> len(table.filter(lambda row: row["previous"] > 0.9))
    1
    """

    def __init__(
        self, rows: Iterable[Row], columns: Sequence[str], left_out: Mapping[str, str] | None = None
    ) -> None:
        self.columns = tuple(columns)
        self.rows = tuple(rows)
        self.left_out = dict(left_out or {})

    @classmethod
    def of(cls, sources: Iterable[Source], *, per_item: bool = False) -> Summary:
        """Measure every head of (name, matrix, tokens or None), each matrix read once.

        A statistic is the mean over all queries that count, of all items and batches; with
        ``per_item`` each item has rows of its own. Padding (queries that may attend to nothing and,
        if tokens are known, tokens that no query may see) never counts.

        Raises `KindError` for anything but lazy matrices, `ArgumentError` for tokens of another
        shape.
        """
        rows = [row for source in sources for row in _rows(*source, per_item)]
        found = {name for row in rows for name in row}
        place = tuple(name for name in PLACE if name != "item" or per_item)
        return cls(
            (
                {name: row.get(name, math.nan) for name in (*place, *STATISTICS) if name in found}
                for row in rows
            ),
            (*place, *(name for name in STATISTICS if name in found)),
        )

    def sort(self, by: str, *, reverse: bool = False) -> Summary:
        """Return the rows ordered by a column, smallest first; NaN comes last either way.

        Numbers in names count as numbers: ``layers.2`` comes before ``layers.10``. Raises
        `ArgumentError` for an unknown column.
        """
        self._check(by)
        known = [row for row in self if not _is_missing(row[by])]
        known.sort(key=lambda row: _natural(row[by]), reverse=reverse)
        missing = (row for row in self if _is_missing(row[by]))
        return Summary([*known, *missing], self.columns, self.left_out)

    def filter(self, condition: Callable[[Row], bool] | None = None, /, **columns: Any) -> Summary:
        """Return the rows for which ``condition(row)`` holds and ``columns`` have these values.

        Names are patterns: ``filter(layer="encoder.*", head=3)``. No comparison holds for NaN, a
        statistic that a head does not have. Raises `ArgumentError` for an unknown column.
        """
        for name in columns:
            self._check(name)
        kept = (row for row in self if all(_is(row[n], want) for n, want in columns.items()))
        found = [row for row in kept if condition is None or condition(row)]
        return Summary(found, self.columns, self.left_out)

    def without(self, left_out: Mapping[str, str]) -> Summary:
        """Return the table with further names of layers that it lacks, and the reasons."""
        return Summary(self.rows, self.columns, {**self.left_out, **left_out})

    def csv(self, path: str | os.PathLike[str]) -> None:
        """Write the table as UTF-8 text separated by commas, a header first, NaN as nothing."""
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            for row in self:
                writer.writerow(
                    {n: "" if _is_missing(value) else value for n, value in row.items()}
                )

    def pandas(self) -> Any:
        """Return the table as a pandas DataFrame.

        Raises `MissingLibraryError`, an ImportError, if pandas is not installed.
        """
        try:
            import pandas  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
        except ImportError:
            expected, got = "pandas, which makes data frames", "an environment without it"
            fix = "pip install pandas, or write .csv(path)"
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
        return "\n".join([_printed(self.columns, self.rows), *self._missing()])

    def __repr__(self) -> str:
        left = len(self) - SHOWN
        if left <= 0:
            return str(self)
        shown = _printed(self.columns, self.rows[:SHOWN])
        return "\n".join([shown, f"… {left} rows more: print(table)", *self._missing()])

    def _missing(self) -> list[str]:
        return [f"{_written(name)}  left out: {why}" for name, why in self.left_out.items()]

    def _check(self, column: str) -> None:
        if column not in self.columns:
            raise build(ArgumentError, "column", f"one of {', '.join(self.columns)}", repr(column))


def alignment_errors(matrices: Sequence[LazyMatrix], gold: Sequence[Alignment]) -> list[float]:
    """Return the alignment error rate of every head over a corpus, from 0 (best) to 1.

    Each matrix (h, t, s) belongs to one sentence pair, with rows for target words and columns for
    source words (`Merged` makes words of tokens); ``gold`` holds their known links (source,
    target). Each head links a target word to the source word with the largest weight.

    Raises `ArgumentError` if the two differ in number or are empty, and for matrices of other axes
    or different numbers of heads.

    Source: Och & Ney 2003, section 5.1, through `intently.corpora.alignment_error_rate`.

    >>> import torch
    >>> from intently.matrix import Dense
    >>> straight, crossed = torch.eye(2), torch.eye(2).flip(0)
    >>> A, gold = Dense(torch.stack([straight, crossed])), Alignment.of([(0, 0), (1, 1)])
    >>> alignment_errors([A], [gold])
    [0.0, 1.0]
    """
    if len(matrices) != len(gold) or not gold:
        expected = f"one for each of {len(gold)} gold alignments, and at least one"
        raise build(ArgumentError, "matrices", expected, len(matrices))
    wrong = [m.shape for m in matrices if m.ndim != 3 or m.shape[0] != matrices[0].shape[0]]
    if wrong:
        expected = "(h, t, s) each, the same h in all"
        fix = "hand in one sentence pair at a time: A[0] of a batch (b, h, t, s)"
        raise build(ArgumentError, "matrices", expected, f"shape {wrong[0]}", fix=fix)
    return [
        alignment_error_rate([links(m[head]) for m in matrices], gold)
        for head in range(matrices[0].shape[0])
    ]


def _rows(
    name: str, matrix: LazyMatrix, ids: Tensor | Sequence[int] | None, per_item: bool
) -> Iterator[Row]:
    if not isinstance(matrix, LazyMatrix):
        fix = "wrap dense weights: it.Dense(weights)"
        raise build(KindError, "matrix", "a lazy matrix", type(matrix).__name__, fix=fix)
    h = matrix.shape[-3] if matrix.ndim > 2 else 1
    if not h:
        return
    sums = {}
    for statistic, average in measure(matrix, ids).items():
        pair = [x.reshape(-1, h) for x in (average.total, average.count)]
        if not per_item:
            pair = [x.sum(0, keepdim=True) for x in pair]
        sums[statistic] = [x.tolist() for x in pair]
    for item, queries in enumerate(sums["entropy"][1]):
        for head in range(h):
            row: Row = {"layer": name, "item": item, "head": head, "queries": int(queries[head])}
            for statistic, (total, count) in sums.items():
                n = count[item][head]
                row[statistic] = total[item][head] / n if n else math.nan
            yield row


def _is(value: Any, want: Any) -> bool:
    texts = isinstance(value, str) and isinstance(want, str)
    return value == want or (texts and fnmatchcase(value, want))


def _is_missing(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _natural(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    parts = re.split(r"(\d+)", value)
    return [int(part) if n % 2 else part for n, part in enumerate(parts)]


def _printed(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """The columns with numbers, in blocks; each block names its rows."""
    known = {
        name: _aligned(name, rows)
        for name in columns
        if name in PLACE or not all(_is_missing(row[name]) for row in rows)
    }
    first = [column for name, column in known.items() if name in ROW]
    wide = max(WIDE, _width(first) + NUMBERS)
    blocks = [first]
    for name, column in known.items():
        if name not in ROW:
            if _width([*blocks[-1], column]) > wide:
                blocks.append(first)
            blocks[-1] = [*blocks[-1], column]
    return "\n\n".join(
        "\n".join("  ".join(cells).rstrip() for cells in zip(*block)) for block in blocks
    )


def _width(block: Sequence[Sequence[str]]) -> int:
    return sum(len(column[0]) for column in block) + 2 * (len(block) - 1)


def _aligned(column: str, rows: Sequence[Row]) -> list[str]:
    cells = [column, *(_written(row[column]) for row in rows)]
    width = max(map(len, cells))
    return [cell.ljust(width) if column == "layer" else cell.rjust(width) for cell in cells]


def _written(value: Any) -> str:
    if _is_missing(value):
        return "–"
    if isinstance(value, float):
        return f"{value:.3f}"
    return printable(str(value))
