"""What every head does: `Summary`, one row for each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from intently.core.matrix import LazyMatrix
from intently.core.matrix.patterns import STATISTICS, measure
from intently.errors import KindError, build
from intently.observe.recording.table import Row, Table

Source: TypeAlias = tuple[str, LazyMatrix, Tensor | Sequence[Any] | None]

PLACE = ("layer", "item", "head", "queries")


class Summary(Table):
    """A tidy table: one row for each head, one column for each statistic.

    Columns are ``layer``, ``head`` (and ``item``, if batch items are separate), ``queries``, the
    number that count, and the statistics that `intently.core.matrix.patterns.measure` defines. A
    statistic that a head does not have (no tokens known, no query that counts) is NaN. Layers that
    could not be measured are in ``left_out``, by name with the reason, and below the printed table.
    The table is printed in blocks as wide as a terminal, without columns of nothing but NaN.

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

    names = ("layer", "item", "head")
    words = ("layer", "changed")
    place = PLACE

    @classmethod
    def of(
        cls,
        sources: Iterable[Source],
        *,
        per_item: bool = False,
        left_out: Mapping[str, str] | None = None,
        changed: Mapping[str, str] | None = None,
    ) -> Summary:
        """Measure every head of (name, matrix, tokens or None), each matrix read once.

        A statistic is the mean over all queries that count, of all items and batches; with
        ``per_item`` each item has rows of its own. Padding (queries that may attend to nothing and,
        if tokens are known, tokens that no query may see) never counts. ``left_out`` are names that
        have no matrix, with the reasons, ``changed`` what changed the weights of some names.

        Raises `KindError` for anything but lazy matrices, `ArgumentError` for tokens of a different
        shape.
        """
        rows = [row for source in sources for row in _rows(*source, per_item)]
        names = [name for name in PLACE if name != "item" or per_item]
        names += ["changed"] * bool(changed)
        names += [name for name in STATISTICS if any(name in row for row in rows)]
        for row in rows:
            row["changed"] = (changed or {}).get(row["layer"], math.nan)
        told = ({name: row.get(name, math.nan) for name in names} for row in rows)
        return cls(told, names, left_out)


def _rows(
    name: str, matrix: LazyMatrix, ids: Tensor | Sequence[Any] | None, per_item: bool
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
