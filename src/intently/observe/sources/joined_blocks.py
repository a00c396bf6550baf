"""Rows of several softmaxes, whose columns are places in blocks, as one matrix of positions.

Queries and keys that meet belong to one head of one text. Within it, their order in memory is their
position. Every row has to come once; a key that comes several times in a row has several weights,
which are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from intently.biases.tiled import TiledBias
from intently.observe.sources.block_masks import mask_of, tiled
from intently.observe.sources.followed import GIVEN
from intently.observe.sources.origins import BITS, NOWHERE
from intently.observe.watching.call import AttentionSpec, Call, InPieces

SAMPLED = 3
"""Rows of each piece that are compared."""
NEAR = 1e-2
"""How near a scale that is read off weights has to be to a usual one to be that."""


class Unfit(Exception):  # noqa: N818 - says why blocks are told one by one
    """Blocks that are no matrix of positions, or none that is known."""


@dataclass
class Product:
    """Queries q (n, r, d) times keys k (n, c, d), and the places of their rows in memory."""

    q: Tensor
    k: Tensor
    rows: Tensor
    cols: Tensor


@dataclass
class Piece:
    """The weights (…, m) of one softmax: the places of its queries (…,) and of its keys (…, m).

    Hidden keys are nowhere. ``whole`` says that rows and columns are those of one product.
    """

    weights: Tensor
    rows: Tensor
    cols: Tensor
    products: list[Product]
    whole: bool
    met: bool = False


@dataclass
class Table:
    """The head and text (``lead``) and the position of each place of queries or of keys."""

    places: Tensor
    lead: Tensor
    position: Tensor
    length: int

    def find(self, places: Tensor) -> Tensor:
        """Which entry of the table each place is, −1 for nowhere."""
        at = torch.searchsorted(self.places, places).clamp_max(len(self.places) - 1)
        return torch.where(self.places[at] == places, at, NOWHERE)


@dataclass
class Laid:
    """A piece whose rows are in order: (l, r) positions, (l, r, m) keys (−1: hidden) and weights."""

    at: Tensor
    keys: Tensor
    weights: Tensor


def joined(pieces: dict[int, Piece]) -> list[tuple[set[int], Call]]:
    """One call for all pieces that share keys, if some of them are gathered; raises `Unfit`."""
    if not any(map(_gathered, pieces.values())):
        return []
    places, labels = _groups([x for piece in pieces.values() for x in piece.products])
    mine = {n: set(_labels(x.rows, places, labels).unique().tolist()) for n, x in pieces.items()}
    made: list[tuple[set[int], Call]] = []
    for cluster in _clusters(mine):
        some = [pieces[n] for n in sorted(cluster)]
        if any(map(_gathered, some)):
            made.append((cluster, _one(some, places, labels)))
    return made


def _gathered(piece: Piece) -> bool:
    """Whether the columns are no plain keys: joined scores, or blocks that share some keys."""
    if not piece.whole:
        return True
    (product,) = piece.products
    cols = product.cols
    alike = bool((cols == cols[:1]).all())
    used = cols[cols != NOWHERE]
    return not alike and len(used.unique()) < len(used)


def _groups(products: Sequence[Product]) -> tuple[Tensor, Tensor]:
    """All places in order, and for each the number of the head and text to which it belongs."""
    blocks, sides, first = [], [], 0
    for product in products:
        for side in (product.rows, product.cols):
            number = torch.arange(first, first + len(side), device=side.device)
            here = side != NOWHERE
            blocks.append(number[:, None].expand_as(side)[here])
            sides.append(side[here])
        first += len(product.rows)
    block = torch.cat(blocks)
    places, node = torch.cat(sides).unique(return_inverse=True)
    label = torch.arange(first, device=block.device)
    while True:
        of_place = label.new_full((len(places),), first)
        of_place.scatter_reduce_(0, node, label[block], "amin")
        least = label.scatter_reduce(0, block, of_place[node], "amin")
        least = least[least]
        if torch.equal(least, label):
            return places, of_place
        label = least


def _labels(rows: Tensor, places: Tensor, labels: Tensor) -> Tensor:
    """The numbers of the heads and texts of places that are somewhere."""
    return labels[torch.searchsorted(places, rows[rows != NOWHERE])]


def _clusters(mine: dict[int, set[int]]) -> list[set[int]]:
    """Pieces that share heads and texts."""
    found: list[tuple[set[int], set[int]]] = []
    for number, labels in mine.items():
        near = [x for x in found if x[1] & labels]
        found = [x for x in found if not x[1] & labels]
        found.append(({number}.union(*(x[0] for x in near)), labels.union(*(x[1] for x in near))))
    return [numbers for numbers, _ in found]


def _one(pieces: Sequence[Piece], places: Tensor, labels: Tensor) -> Call:
    """The call of pieces that share keys."""
    products = [x for piece in pieces for x in piece.products]
    mine = torch.cat([_labels(piece.rows, places, labels) for piece in pieces]).unique()
    lead, groups = max((_lead(x, places, labels, mine) for x in pieces), key=lambda x: len(x[0]))
    rows = _table([x.rows for x in products], places, labels, groups)
    cols = _table([x.cols for x in products], places, labels, groups)
    if rows.length > cols.length:
        raise Unfit("there are more queries than keys: heads may share keys")
    laid = [_laid(piece, rows, cols, len(groups)) for piece in pieces]
    count = torch.zeros(len(groups), rows.length, dtype=torch.int64, device=places.device)
    for one in laid:
        count.scatter_add_(1, one.at, torch.ones_like(one.at))
    if bool((count != 1).any()):
        raise Unfit("some rows come several times, or never")
    sizes = (*lead, rows.length, cols.length)
    real = InPieces(sizes, laid[0].weights.dtype, *_sampled(laid, sizes))
    given = partial(_given, laid, sizes)
    q = _laid_out([(x.q, x.rows) for x in products], rows, len(groups))
    k = _laid_out([(x.k, x.cols) for x in products], cols, len(groups))
    if q is None or k is None or q.shape[-1] != k.shape[-1]:
        return replace(given("queries or keys differ from block to block"), real=real)
    mask, bias = mask_of([(x.at, x.keys) for x in laid], sizes)
    how = AttentionSpec(mask=mask, bias=bias, scale=_scale(laid, q, k))
    q, k = (x.reshape(*lead, *x.shape[-2:]) for x in (q, k))
    return Call(q, k, k, None, how, "by hand", real=real, as_weights=given)


def _lead(
    piece: Piece, places: Tensor, labels: Tensor, mine: Tensor
) -> tuple[tuple[int, ...], Tensor]:
    """The leading axes (text, head) of the softmax, and the group at each of their indices."""
    known = piece.rows != NOWHERE
    group = torch.full_like(piece.rows, NOWHERE)
    group[known] = _labels(piece.rows, places, labels)
    lowest = group.masked_fill(~known, int(mine.max()) + 1)
    axes = [i for i in range(group.ndim) if bool((group.amax(i) > lowest.amin(i)).any())]
    last = max(axes, default=1)
    axes = [i for i, n in enumerate(group.shape) if i in axes or (n == 1 and i < last)]
    if len(axes) == 1 and group.shape[axes[0] + 1 : axes[0] + 2] == (1,):
        axes.append(axes[0] + 1)
    lead = tuple(group.shape[i] for i in axes)
    others = [i for i in range(group.ndim) if i not in axes]
    groups = (group.amax(others) if others else group).flatten()
    if not torch.equal(groups.sort().values, mine):
        return (len(mine),), mine
    return lead, groups


def _table(sides: Sequence[Tensor], places: Tensor, labels: Tensor, groups: Tensor) -> Table:
    """The positions of all places of queries, or of keys."""
    found = torch.cat([x[x != NOWHERE] for x in sides]).unique()
    label = labels[torch.searchsorted(places, found)]
    order = groups.argsort()
    at = torch.searchsorted(groups[order], label).clamp_max(len(groups) - 1)
    if not torch.equal(groups[order][at], label):
        raise Unfit("some keys belong to no query")
    lead = order[at]
    counts = lead.bincount(minlength=len(groups))
    if bool((counts != counts[0]).any()):
        raise Unfit("heads or texts have different lengths")
    n, position = int(counts[0]), torch.empty_like(lead)
    position[lead.argsort(stable=True)] = torch.arange(len(lead), device=lead.device) % n
    return Table(found, lead, position, n)


def _laid(piece: Piece, rows: Table, cols: Table, leads: int) -> Laid:
    """A piece with its rows in order."""
    flat = piece.rows.flatten()
    known = flat != NOWHERE
    row = rows.find(flat[known])
    m = piece.cols.shape[-1]
    keys, weights = piece.cols.reshape(-1, m)[known], piece.weights.reshape(-1, m)[known]
    found = cols.find(keys)
    position = torch.where(found == NOWHERE, NOWHERE, cols.position[found])
    order = (rows.lead[row] * rows.length + rows.position[row]).argsort()
    if len(order) % leads or bool((rows.lead[row].bincount(minlength=leads) * leads != len(order)).any()):
        raise Unfit("heads or texts have different numbers of rows")
    shape = leads, len(order) // leads
    return Laid(
        rows.position[row][order].view(shape),
        position[order].view(*shape, m),
        weights[order].view(*shape, m),
    )


def _laid_out(parts: Sequence[tuple[Tensor, Tensor]], table: Table, leads: int) -> Tensor | None:
    """Rows (n, r, d) of products as (l, t, d) by their positions; None if copies differ."""
    widths = {x.shape[-1] for x, _ in parts}
    if len(widths) > 1:
        return None
    made = parts[0][0].new_zeros(leads * table.length, *widths)
    found = []
    for x, places in parts:
        here = places != NOWHERE
        entry = table.find(places[here])
        at = table.lead[entry] * table.length + table.position[entry]
        made[at] = x[here]
        found.append((at, x[here]))
    if any(not torch.equal(made[at], x) for at, x in found):
        return None
    return made.view(leads, table.length, -1)


def _sampled(laid: Sequence[Laid], sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Some rows (n,) of every piece, and their weights (…, n, s)."""
    some = []
    for one in laid:
        own = one.at.unique()
        step = max(1, (len(own) - 1) // (SAMPLED - 1))
        some += [own[::step], own[-1:]]
    rows = torch.cat(some).unique()
    made = laid[0].weights.new_zeros(len(laid[0].at), len(rows), sizes[-1] + 1)
    for one in laid:
        slot = torch.searchsorted(rows, one.at).clamp_max(len(rows) - 1)
        lead, row = (rows[slot] == one.at).nonzero(as_tuple=True)
        keys = one.keys[lead, row]
        keys = torch.where(keys == NOWHERE, sizes[-1], keys)
        flat = (lead * len(rows) + slot[lead, row])[:, None] * (sizes[-1] + 1) + keys
        made.view(-1).scatter_add_(0, flat.flatten(), one.weights[lead, row].flatten())
    return rows, made[..., :-1].reshape(*sizes[:-2], len(rows), sizes[-1])


def _scale(laid: Sequence[Laid], q: Tensor, k: Tensor) -> float:
    """The factor of the scores, read off the logarithms of some weights."""
    above = below = 0.0
    for one in laid:
        for row in {0, one.at.shape[1] // 2, one.at.shape[1] - 1}:
            keys, weights = one.keys[:, row], one.weights[:, row].double()
            seen = (keys != NOWHERE) & (weights > 1e-30)
            mine = k[torch.arange(len(k), device=k.device)[:, None], keys.clamp_min(0)].double()
            mine_q = q[torch.arange(len(q), device=q.device), one.at[:, row]].double()
            z = (mine @ mine_q[..., None])[..., 0]
            logs = weights.clamp_min(1e-30).log()
            number = seen.sum(-1, keepdim=True).clamp_min(1)
            z, logs = (x - (x * seen).sum(-1, keepdim=True) / number for x in (z, logs))
            above += float((z * logs * seen).sum())
            below += float((z * z * seen).sum())
    found = above / below if below else 1.0
    for usual in (1.0, q.shape[-1] ** -0.5):
        if abs(found - usual) <= NEAR * usual:
            return usual
    return found


def _given(laid: Sequence[Laid], sizes: tuple[int, ...], why: str) -> Call:
    """The call with the weights themselves in place of queries and keys, in tiles."""
    if sum(x.keys.numel() for x in laid) > GIVEN:
        raise Unfit("there are too many weights")
    codes, values = [], []
    for one in laid:
        lead, row, column = (one.keys != NOWHERE).nonzero(as_tuple=True)
        at = (lead * sizes[-2] + one.at[lead, row]) * sizes[-1] + one.keys[lead, row, column]
        codes.append(at)
        values.append(one.weights[lead, row, column])
    code, same = torch.cat(codes).unique(return_inverse=True)
    value = torch.cat(values).float()
    value = value.new_zeros(len(code)).index_add_(0, same, value).log()
    index, tiles = tiled(code, value, sizes, -torch.inf)
    none = value.new_zeros(*sizes[:-1], 0), value.new_zeros(*sizes[:-2], sizes[-1], 0)
    how = AttentionSpec(bias=TiledBias(index, tiles))
    return Call(*none, none[1], None, how, "by hand", as_it_is=why)
