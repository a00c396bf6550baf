"""A small labelled matrix as a table of its weights, for the terminal and the notebook."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

import numpy as np
import torch

from intently.core.matrix import LazyMatrix
from intently.show.labels import visible
from intently.show.reading import numbers
from intently.show.style import WEIGHTS
from intently.show.terminal import fitted

MOST, WIDTH, LABEL = 16, 100, 14
"""Most rows and columns, the widest line in terminal cells, and the widest label."""

COMPUTED = 2**20
"""Most weights that are computed unasked."""


class Table(NamedTuple):
    """Weights (t, s) with a label for every row and column."""

    rows: list[str]
    columns: list[str]
    weights: np.ndarray


def table_of(matrix: LazyMatrix) -> Table | None:
    """Return the table of a labelled matrix (t, s), None if it is large or has no labels."""
    *lead, t, s = matrix.shape
    if any(n != 1 for n in lead) or not 0 < t <= MOST or not 0 < s <= MOST:
        return None
    one = matrix[(0,) * len(lead)] if lead else matrix
    if one.labels == (None, None) or one._row_size() * t > COMPUTED:
        return None
    with torch.no_grad():
        weights = numbers(one.dense())
    rows, columns = (
        [visible(label, LABEL) for label in given or map(str, range(n))]
        for given, n in zip(one.labels, (t, s))
    )
    return Table(rows, columns, weights)


def text_table(matrix: LazyMatrix) -> str:
    """Return the table of a small labelled matrix, a line for each row; "" if there is none.

    >>> from intently.core.matrix import Dense
    >>> print(text_table(Dense([[0.25, 0.75], [1, 0]], (("it", "is"), ("the", "road")))))
         the  road
    it  0.25  0.75
    is  1.00  0.00
    """
    from rich.cells import cell_len

    table = table_of(matrix)
    if table is None:
        return ""
    margin = max(map(cell_len, table.rows))
    widths = [max(4, cell_len(name)) for name in table.columns]
    if margin + sum(widths) + 2 * len(widths) > WIDTH:
        return ""
    told = [["", *table.columns]]
    for name, row in zip(table.rows, table.weights):
        told.append([name + " " * (margin - cell_len(name)), *(f"{w:.2f}" for w in row)])
    return "\n".join(
        "  ".join(fitted(cell, width) for cell, width in zip(line, (margin, *widths)))
        for line in told
    )


def html_table(matrix: LazyMatrix) -> str:
    """Return the table of a small labelled matrix, each weight on its shade; "" if none."""
    table = table_of(matrix)
    if table is None:
        return ""
    cell = 'style="padding:2px 6px;text-align:right'
    head = "".join(f'<th {cell}">{escape(name)}</th>' for name in table.columns)
    top = float(table.weights[np.isfinite(table.weights)].max(initial=0)) or 1.0
    lines = [f"<tr><th></th>{head}</tr>"]
    for name, row in zip(table.rows, table.weights):
        cells = "".join(f'<td {cell};{_shade(w / top)}">{w:.2f}</td>' for w in row)
        lines.append(f'<tr><th {cell}">{escape(name)}</th>{cells}</tr>')
    return f'<table style="border-collapse:collapse;color:inherit">{"".join(lines)}</table>'


def _shade(share: float) -> str:
    """Return the colours of a weight, as its share of the largest."""
    if not np.isfinite(share):
        return "background:#c8c8c8;color:#000"
    stop = WEIGHTS[round(min(max(share, 0.0), 1.0) * (len(WEIGHTS) - 1))]
    return f"background:{stop};color:{'#fff' if share > 0.5 else '#000'}"
