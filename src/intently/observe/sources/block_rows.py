"""The query of each row of a softmax, and the keys of its columns, by the places of its scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intently.observe.sources.origins import BITS, NOWHERE, View


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
    """The softmax of some number: the places of its queries (…,), and its keys.

    ``cols`` (…, m, int32) are entries of ``keys``, the places of all keys; −1 if hidden. ``whole``
    says that rows and columns are those of one product, ``sure`` that this depends on no weights.
    """

    number: int
    rows: Tensor
    cols: Tensor
    keys: Tensor
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
    numbers = sorted(softmax.cells.memory.numbers)
    if len(numbers) > 1:
        counts = (cells >> BITS).flatten().add_(1).bincount()
        numbers = counts[1:].nonzero().flatten().tolist()
    if not set(numbers) <= products.keys() or int(cells.amax()) == NOWHERE:
        return None
    found = [products[n] for n in numbers]
    queries, rows, keys, cols = _rows_and_keys(cells, found)
    row = rows.masked_fill(hidden, NOWHERE).amax(-1)
    if bool(((rows != row[..., None]) & (rows != NOWHERE) & ~hidden).any()):
        return None
    empty = hidden.all(-1)
    row[empty] = _most(rows[empty])
    padding = cols == NOWHERE
    padding &= ~hidden
    padding &= (row != NOWHERE)[..., None]
    sure = not bool(padding.any())
    if not sure and bool((padding & (softmax.weights > 0)).any()):
        return None
    cols.masked_fill_(hidden, NOWHERE)
    whole = len(found) == 1 and cells.numel() == found[0].rows.numel() * found[0].cols.shape[-1]
    return Piece(number, queries[row.long()], cols, keys, found, whole, sure)


def _most(rows: Tensor) -> Tensor:
    """The query that comes most often in each row (n, m), where some hidden scores are others'."""
    return torch.where(rows == NOWHERE, rows.amax(-1, keepdim=True), rows).mode(-1).values


def _rows_and_keys(
    cells: Tensor, products: Sequence[Sides]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All queries, those of scores whose places are ``cells``, all keys, and those of the scores.

    Queries and keys of scores are int32 entries of all of them, or −1.
    """
    queries, query = _entries([x.rows for x in products])
    keys, key = _entries([x.cols for x in products])
    rows = torch.full(cells.shape, NOWHERE, dtype=torch.int32, device=cells.device)
    cols = rows.clone()
    for product, of_row, of_column in zip(products, query, key):
        n, m = product.rows.shape[-1], product.cols.shape[-1]
        last = product.rows.numel() * m - 1
        at = cells - (product.number << BITS)
        here = (at >= 0) & (at <= last) if len(products) > 1 else at >= 0
        at = at.clamp_(0, last).int()
        row = at // m
        column = at.sub_(row * m).add_(row // n * m)
        torch.where(here, _taken(of_row, row), rows, out=rows)
        torch.where(here, _taken(of_column, column), cols, out=cols)
    return queries, rows, keys, cols


def _entries(sides: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """All places in order, the last one nowhere, and which of them each is, −1 for nowhere."""
    flat = torch.cat([x.flatten() for x in sides])
    places, entry = flat.unique(return_inverse=True)
    if len(places) and int(places[0]) == NOWHERE:
        places, entry = places[1:], entry - 1
    places = torch.cat([places, places.new_full((1,), NOWHERE)])
    return places, list(entry.int().split([x.numel() for x in sides]))


def _taken(x: Tensor, at: Tensor) -> Tensor:
    return x.index_select(0, at.flatten()).view(at.shape)
