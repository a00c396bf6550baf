"""Rows of several softmaxes, whose columns are places in blocks, as one matrix of positions.

Queries and keys that meet belong to one head of one text. Within it, their order in memory is their
position. Every row has to come once; a key that comes several times in a row has several weights,
which are added.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from intently.observe.sources.block_rows import Piece, Sides, shared
from intently.observe.sources.laid_blocks import Plan, Side, Table, Unfit, laid_by, placed
from intently.observe.sources.origins import BITS, NOWHERE


def planned(pieces: dict[int, Piece], replaced: Tensor) -> list[Plan]:
    """One matrix for all pieces that share keys, if some of them are gathered; raises `Unfit`.

    ``replaced`` (2, n) are queries whose result was overwritten, and those whose result it was.
    """
    if not any(map(_gathered, pieces.values())):
        return []
    places, labels = _groups([x for piece in pieces.values() for x in piece.products])
    mine = {n: set(_labels(x.rows, places, labels).unique().tolist()) for n, x in pieces.items()}
    clusters = _clusters(mine)
    replaced = replaced.to(places.device)
    left, made = [*clusters], list[Plan]()
    for cluster in clusters:
        some = [pieces[n] for n in sorted(cluster)]
        if cluster not in left or not any(map(_gathered, some)):
            continue
        known = torch.cat([piece.rows.flatten() for piece in some])
        over = replaced[1, torch.isin(replaced[0], known)]
        others = [
            other
            for other in left
            if other is not cluster
            and any(bool(torch.isin(pieces[n].rows, over).any()) for n in other)
        ]
        left = [x for x in left if x is not cluster and x not in others]
        rest = [[pieces[n] for n in sorted(other)] for other in others]
        made.append(_one(cluster.union(*others), some, rest, replaced, places, labels))
    return made


def _gathered(piece: Piece) -> bool:
    """Whether the columns are no plain keys: joined scores, or blocks that share some keys."""
    if not piece.whole:
        return True
    return shared(piece.products[0].cols)


def _groups(products: Sequence[Sides]) -> tuple[Tensor, Tensor]:
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


def _one(
    numbers: set[int],
    pieces: Sequence[Piece],
    others: Sequence[Sequence[Piece]],
    replaced: Tensor,
    places: Tensor,
    labels: Tensor,
) -> Plan:
    """The matrix of pieces that share keys, some of whose rows are those of ``others`` instead."""
    mine = torch.cat([_labels(piece.rows, places, labels) for piece in pieces]).unique()
    lead, groups = max((_lead(x, places, labels, mine) for x in pieces), key=lambda x: len(x[0]))
    found = _side(pieces, places, labels, groups)
    if found.rows.length > found.cols.length:
        raise Unfit("there are more queries than keys: heads may share keys")
    sides = [found]
    for other in others:
        sides.append(_instead(other, found, replaced, places, labels))
    laid = [x for side in sides for x in side.laid]
    count = torch.zeros(len(groups), found.rows.length, dtype=torch.int64, device=places.device)
    for one in laid:
        count.scatter_add_(1, one.at.clamp_min(0), (one.at != NOWHERE).long())
    if bool((count != 1).any()):
        raise Unfit("some rows come several times, or never")
    return Plan(numbers, (*lead, found.rows.length, found.cols.length), sides)


def _side(pieces: Sequence[Piece], places: Tensor, labels: Tensor, groups: Tensor) -> Side:
    """Pieces laid out by the positions of their queries and keys."""
    products = [x for piece in pieces for x in piece.products]
    rows = _table([x.rows for x in products], places, labels, groups)
    cols = _table([x.cols for x in products], places, labels, groups)
    return _laid_by(pieces, rows, cols, len(groups))


def _laid_by(pieces: Sequence[Piece], rows: Table, cols: Table, leads: int) -> Side:
    products = [x for piece in pieces for x in piece.products]
    laid = [laid_by(piece, rows, cols, leads) for piece in pieces]
    q = placed([(x.number, x.rows) for x in products], rows)
    return Side(rows, cols, laid, q, placed([(x.number, x.cols) for x in products], cols))


def _instead(
    pieces: Sequence[Piece], found: Side, replaced: Tensor, places: Tensor, labels: Tensor
) -> Side:
    """Pieces whose rows stand in place of others, which are taken out of ``found``."""
    of = torch.cat([piece.rows.flatten() for piece in pieces])
    old, new = replaced[:, torch.isin(replaced[1], of)]
    new, order = new.sort()
    at = found.rows.find(old[order])
    if bool((at == NOWHERE).any()) or len(new.unique()) < len(new):
        raise Unfit("rows stand in place of rows of several matrices")
    lead, position = found.rows.lead[at], found.rows.position[at]
    leads, length = len(found.laid[0].at), found.rows.length
    groups = torch.full((leads,), NOWHERE, device=places.device)
    groups[lead] = labels[torch.searchsorted(places, new)]
    products = [x for piece in pieces for x in piece.products]
    cols = _table([x.cols for x in products], places, labels, groups)
    if cols.length != found.cols.length:
        raise Unfit("rows stand in place of rows with other keys")
    gone = torch.zeros(leads, length + 1, dtype=torch.bool, device=places.device)
    gone[lead, position] = True
    for one in found.laid:
        out = gone.gather(1, one.at.where(one.at != NOWHERE, length))
        one.at[out], one.keys[out] = NOWHERE, NOWHERE
    gone = gone[:, :-1]
    found.gone = gone if found.gone is None else found.gone | gone
    return _laid_by(pieces, Table(new, lead, position, length), cols, leads)


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
    """The positions of all places of queries, or of keys.

    Those of several tensors follow each other in the order in which the products show them.
    """
    found = torch.cat([x[x != NOWHERE] for x in sides]).unique()
    runs = [(x[x != NOWHERE] >> BITS).unique_consecutive().tolist() for x in sides]
    first = list(dict.fromkeys(n for run in runs for n in run))
    turn = torch.zeros_like(found)
    for number, tensor in enumerate(first):
        turn[found >> BITS == tensor] = number
    label = labels[torch.searchsorted(places, found)]
    order = groups.argsort()
    at = torch.searchsorted(groups[order], label).clamp_max(len(groups) - 1)
    here = groups[order][at] == label
    found, lead = found[here], order[at][here]
    counts = lead.bincount(minlength=len(groups))
    n, position = int(counts.max()), torch.empty_like(lead)
    if bool(((counts != n) & (groups != NOWHERE)).any()):
        raise Unfit("heads or texts have different lengths")
    order = (lead * len(first) + turn[here]).argsort(stable=True)
    position[order] = torch.arange(len(lead), device=lead.device) % n
    return Table(found, lead, position, n)
