"""Matrices read for pictures: weights that fit the paper, names of rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch

from intently.core.matrix import LazyMatrix
from intently.core.matrix.labelling import follows, row_name
from intently.core.matrix.patterns import blocks_of_heads, entropies
from intently.errors import ArgumentError, build, shape_of

Pooling = Literal["mean", "max", "sum"]


LEAST = 0.005
"""Least missing weight that a figure mentions."""


class AxisNames(NamedTuple):
    """The names of rows and columns; their numbers where a matrix has no labels."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]


def numbers(values: torch.Tensor) -> np.ndarray:
    """Return the tensor as a NumPy array on the CPU, half types as float32."""
    values = values.detach().cpu()
    half = values.is_floating_point() and values.element_size() < 4
    return (values.float() if half else values).numpy()


def weights(matrix: LazyMatrix) -> np.ndarray:
    """Return all weights, shape (…, t, s)."""
    with torch.no_grad():
        return numbers(matrix.dense())


def looked(matrix: LazyMatrix, at: int, looks: str) -> np.ndarray:
    """Return the row of token ``at`` of a matrix (t, s), or its column."""
    with torch.no_grad():
        return numbers(matrix[at, :] if looks == "at" else matrix[:, at])


def at_most(
    matrix: LazyMatrix, most: int | tuple[int, int], what: str, cause: str, fix: str
) -> None:
    """Raise ArgumentError for a matrix (t, s) of more rows or columns than ``most``."""
    t, s = (most, most) if isinstance(most, int) else most
    if matrix.shape[-2] > t or matrix.shape[-1] > s:
        raise build(ArgumentError, "matrix", f"at most {what}", shape_of(matrix), cause, fix)


def picture(matrix: LazyMatrix, most: int, reduce: Pooling = "mean") -> np.ndarray:
    """Return weights (…, t, s), pooled to at most ``most`` rows and columns."""
    t, s = matrix.shape[-2:]
    if t <= most and s <= most:
        return weights(matrix)
    with torch.no_grad():
        return numbers(matrix.pool(min(t, most), min(s, most), reduce=reduce))


def pooled(shape: Sequence[int], most: int, reduce: str, what: str = "weights") -> str:
    """Describe a cell of a matrix (t, s) that was pooled to at most ``most`` cells a side."""
    down, across = (n / min(n, most) for n in shape)
    return f"each cell the {reduce} of about {down:.3g} × {across:.3g} {what}"


def edges(start: int, stop: int, count: int) -> np.ndarray:
    """Return where cells begin, and the last one ends: ``count`` at most, none empty, as in `pool`.

    >>> edges(0, 5, 2).tolist()
    [0, 3, 5]
    """
    n = stop - start
    count = max(1, min(count, n))
    return start + -(-np.arange(count + 1) * n // count)


def measured(reduce: Pooling | None, what: str = "weight") -> str:
    """Return the label of the colour bar; ``reduce`` is None where no cells were pooled."""
    if reduce is None:
        return what
    return {"mean": f"mean {what}", "max": f"largest {what}", "sum": f"sum of {what}s"}[reduce]


def names(matrix: LazyMatrix) -> AxisNames:
    """Return the tokens of rows and columns, numbered from 0 if unknown. A row labelled with the
    token that it writes, the next one, belongs to the token before.
    """
    rows, columns = matrix.labels
    t, s = matrix.shape[-2:]
    if columns is not None and follows(matrix) == 1:
        rows = columns[s - t :]
    return AxisNames(
        tuple(map(str, range(t))) if rows is None else tuple(rows),
        tuple(map(str, range(s))) if columns is None else tuple(columns),
    )


def shown_names(matrix: LazyMatrix, clean: Callable[[Sequence[str]], Sequence[str]]) -> AxisNames:
    """Return the names of rows and columns, of tokens made visible by ``clean``.

    >>> from intently.core.matrix import Dense
    >>> shown_names(Dense(torch.eye(2), labels=(("cat", ""), ("the", "cat"))), tuple)
    AxisNames(rows=('the (writes cat)', 'cat'), columns=('the', 'cat'))
    """
    known, written = matrix.labels, matrix.labels[0]
    found = names(matrix)
    # numbers are visible as they are
    rows, columns = (
        clean(side) if labels is not None else side for side, labels in zip(found, known)
    )
    if written is not None and follows(matrix) == 1:
        named = zip(rows, written, clean(written))
        rows = [row_name(own, text if known else "") for own, known, text in named]
    return AxisNames(tuple(rows), tuple(columns))


def outside(values: np.ndarray, rows: Sequence[str]) -> str:
    """Return a note on the weight that is not drawn; "" if all rows sum to 1.

    >>> outside(np.array([[0.5, 0.5], [0.05, 0.01]]), ("the", "it"))
    'not drawn: up to 0.94 of the weight of a row (‘it’), on what has no column here'
    """
    shares = np.all((values >= 0) & (values <= 1), axis=1)  # False for NaN too
    sums = np.where(shares[:, None], values, 0).sum(1)
    rest = np.where(sums > 0, 1 - sums, 0)
    if rest.max(initial=0.0) < LEAST or sums.max() > 1 + LEAST:
        return ""
    most = int(rest.argmax())
    row = f"a row (‘{rows[most]}’)"
    return f"not drawn: up to {rest[most]:.2f} of the weight of {row}, on what has no column here"


def missing(values: np.ndarray) -> str:
    """Return a note on how many values are not finite; "" if all are."""
    count = int((~np.isfinite(values)).sum())
    verb = "is" if count == 1 else "are"
    return f"hatched: {count} of {values.size} weights {verb} not finite" if count else ""


# --- in one pass ----------------------------------------------------------------------------------

SIZE = 2**19
"""Weights of one block: they stay in the cache while all three are read from them."""


class Survey(NamedTuple):
    """Cells (rows, columns), the entropy of each query (t,) and what each key receives (s,).

    ``highest`` is the largest single weight.
    """

    cells: np.ndarray
    entropy: np.ndarray
    received: np.ndarray
    highest: float


def survey(matrix: LazyMatrix, rows: int, columns: int, reduce: Pooling = "mean") -> Survey:
    """Return the picture ``A.pool(rows, columns, reduce)``, ``A.entropy()`` and ``A.received()``.

    The weights (t, s) are computed once, where the three would compute them three times. Weights
    that are not finite count in the first two only.

    >>> from intently.core.matrix import Dense
    >>> found = survey(Dense(torch.eye(4)), 2, 2, "sum")
    >>> found.cells.tolist(), found.entropy.tolist(), found.received.tolist()
    ([[2.0, 0.0], [0.0, 2.0]], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0])
    """
    t, s = matrix.shape
    rows, columns = min(rows, t), min(columns, s)
    down, across = edges(0, t, rows), edges(0, s, columns)
    join = np.maximum if reduce == "max" else np.add
    cells = np.full((rows, columns), -np.inf if reduce == "max" else 0.0)
    entropy, received = np.zeros(t), np.zeros(s)
    highest = 0.0
    with torch.no_grad():
        for block in blocks_of_heads(matrix, SIZE):
            w, top = block.weights, block.rows.start
            starts, first = _cut(down, block.rows)
            bands = w.split(np.diff([*starts, block.rows.stop - top]).tolist(), -2)
            sums = torch.stack([band.sum(-2) for band in bands])
            highest = max(highest, float(w.nan_to_num(nan=0.0, posinf=0.0).amax()))
            high = torch.stack([band.amax(-2) for band in bands]) if reduce == "max" else sums
            taken = sums.sum(0)
            if not taken.isfinite().all():
                taken = w.where(w.isfinite(), 0).sum(-2)
            received[block.cols] += numbers(taken)
            columns_of, before = _cut(across, block.cols)
            picture = join.reduceat(numbers(high), columns_of, axis=1)
            at = slice(first, first + len(starts)), slice(before, before + len(columns_of))
            cells[at] = join(cells[at], picture)
            entropy[block.rows] = numbers(entropies(w))
    if reduce == "mean":
        cells /= np.diff(down)[:, None] * np.diff(across)
    cells[np.isneginf(cells)] = 0
    return Survey(cells, np.maximum(entropy, 0), received, highest)


def _cut(edges: np.ndarray, span: slice) -> tuple[np.ndarray, int]:
    """Return where the cells that meet ``span`` begin within it, and the first of them."""
    first = int(np.searchsorted(edges, span.start, side="right")) - 1
    last = int(np.searchsorted(edges, span.stop, side="left"))
    return np.maximum(edges[first:last], span.start) - span.start, first
