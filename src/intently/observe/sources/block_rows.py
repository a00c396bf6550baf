"""The query of each row of a softmax, and the keys of its columns, by the places of its scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intently.observe.sources.origins import BITS, NOWHERE, View

COUNT = (1 << BITS) - 1
"""The bits of a place that count entries."""


@dataclass
class Sides:
    """The places of the queries (n, r) and the keys (n, c) of the product of some number."""

    number: int
    rows: Tensor
    cols: Tensor


@dataclass
class Product:
    """Queries q (n, r, d) times keys k (n, c, d), and where their first columns are from."""

    q: Tensor
    k: Tensor
    rows: View
    cols: View

    def sides(self, number: int) -> Sides:
        """The places of all queries and keys."""
        rows, cols = self.rows.places(), self.cols.places()
        if rows.ndim == 1:
            rows, cols = rows[None], cols[None]
        return Sides(number, rows.clone(), cols.clone())


@dataclass
class Softmax:
    """The weights of one softmax, where their scores are from, and which of these are hidden.

    ``met`` says that the weights met values.
    """

    cells: View
    weights: Tensor
    hidden: Tensor
    met: bool = False


@dataclass
class Piece:
    """The softmax of some number: the places of its queries (…,) and of its keys (…, m).

    Hidden keys are nowhere. ``whole`` says that rows and columns are those of one product,
    ``sure`` that this depends on no weights.
    """

    number: int
    rows: Tensor
    cols: Tensor
    products: list[Sides]
    whole: bool
    sure: bool


def plain(softmax: Softmax, products: Mapping[int, Product]) -> bool:
    """Whether the columns are plain keys, as far as can be told at once."""
    origin = softmax.cells.memory.origin
    product = products.get(origin) if origin is not None else None
    if product is None:
        return False
    sides = product.sides(0)
    if math.prod(softmax.cells.shape[0]) != sides.rows.numel() * sides.cols.shape[-1]:
        return False
    return not shared(sides.cols)


def shared(cols: Tensor) -> bool:
    """Whether blocks (n, c) of keys have some, but not all of them in common."""
    used = cols[cols != NOWHERE]
    return not bool((cols == cols[:1]).all()) and len(used.unique()) < len(used)


def piece_of(number: int, softmax: Softmax, products: Mapping[int, Sides]) -> Piece | None:
    """The queries and keys of a softmax; None if it mixes queries, or attends to padding."""
    cells, hidden = softmax.cells.places(), softmax.hidden
    numbers = (cells >> BITS).flatten().add_(1).bincount()[1:].nonzero().flatten().tolist()
    if not numbers or not set(numbers) <= products.keys():
        return None
    found = [products[n] for n in numbers]
    rows, cols = _rows_and_keys(cells, found)
    row = rows.masked_fill(hidden, NOWHERE).amax(-1)
    if bool(((rows != row[..., None]) & (rows != NOWHERE) & ~hidden).any()):
        return None
    empty = hidden.all(-1)
    row[empty] = _most(rows[empty])
    nobody = (row == NOWHERE)[..., None]
    padding = (cols == NOWHERE) & ~hidden & ~nobody
    sure = not bool(padding.any())
    if not sure and bool((padding & (softmax.weights > 0)).any()):
        return None
    cols.masked_fill_(hidden, NOWHERE)
    whole = len(found) == 1 and cells.numel() == found[0].rows.numel() * found[0].cols.shape[-1]
    return Piece(number, row, cols, found, whole, sure)


def _most(rows: Tensor) -> Tensor:
    """The place that comes most often in each row (n, m), where some hidden scores are others'."""
    return torch.where(rows == NOWHERE, rows.amax(-1, keepdim=True), rows).mode(-1).values


def _rows_and_keys(cells: Tensor, products: Sequence[Sides]) -> tuple[Tensor, Tensor]:
    """The places of the queries and the keys of scores whose places are ``cells``."""
    rows, cols = (torch.full(cells.shape, NOWHERE, device=cells.device) for _ in range(2))
    for product in products:
        n, m = product.rows.shape[-1], product.cols.shape[-1]
        here = (cells >> BITS) == product.number
        at = (cells & COUNT).mul_(here).int()
        row = at // m
        column = row // n * m + (at - row * m)
        torch.where(here, _taken(product.rows, row), rows, out=rows)
        torch.where(here, _taken(product.cols, column), cols, out=cols)
    return rows, cols


def _taken(x: Tensor, at: Tensor) -> Tensor:
    return x.flatten().index_select(0, at.flatten()).view(at.shape)
