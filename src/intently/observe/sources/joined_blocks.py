"""Rows of several softmaxes, whose columns are places in blocks, as one matrix of positions.

Queries and keys that meet belong to one head of one text. Within it, their order in memory is their
position. Every row has to come once; a key that comes several times in a row has several weights,
which are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    """A piece with its rows in order: positions (l, r), keys (l, r, m) or −1, and weights."""

    at: Tensor
    keys: Tensor
    weights: Tensor


@dataclass
class Side:
    """Pieces that share keys; q (l, t, d) and k (l, s, d) are None if copies of a row differ."""

    rows: Table
    cols: Table
    laid: list[Laid]
    q: Tensor | None
    k: Tensor | None


def joined(pieces: dict[int, Piece], replaced: Tensor) -> list[tuple[set[int], Call]]:
    """One call for all pieces that share keys, if some of them are gathered; raises `Unfit`.

    ``replaced`` (2, n) are queries whose result was overwritten, and those whose result it was.
    """
    if not any(map(_gathered, pieces.values())):
        return []
    places, labels = _groups([x for piece in pieces.values() for x in piece.products])
    mine = {n: set(_labels(x.rows, places, labels).unique().tolist()) for n, x in pieces.items()}
    clusters = _clusters(mine)
    replaced = replaced.to(places.device)
    left, made = [*clusters], list[tuple[set[int], Call]]()
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
        made.append((cluster.union(*others), _one(some, rest, replaced, places, labels)))
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


def _one(
    pieces: Sequence[Piece],
    others: Sequence[Sequence[Piece]],
    replaced: Tensor,
    places: Tensor,
    labels: Tensor,
) -> Call:
    """The call of pieces that share keys, some of whose rows are those of ``others`` instead."""
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
    sizes = (*lead, found.rows.length, found.cols.length)
    real = InPieces(sizes, laid[0].weights.dtype, *_sampled(laid, sizes))
    given = partial(_given, laid, sizes, real)
    known = [
        (side, side.q, side.k)
        for side in sides
        if side.q is not None and side.k is not None and side.q.shape[-1] == side.k.shape[-1]
    ]
    if len(known) < len(sides):
        return given("queries or keys differ from block to block")
    mask, bias = mask_of([(x.at, x.keys) for x in laid], sizes)
    scale = _scale(found)
    q = torch.cat([q if side is found else q * (_scale(side) / scale) for side, q, _ in known], -1)
    k = torch.cat([k for _, _, k in known], -1)
    q, k = (x.reshape(*lead, *x.shape[-2:]) for x in (q, k))
    how = AttentionSpec(mask=mask, bias=bias, scale=scale)
    return Call(q, k, k, None, how, "by hand", real=real, as_weights=given)


def _side(pieces: Sequence[Piece], places: Tensor, labels: Tensor, groups: Tensor) -> Side:
    """Pieces laid out by the positions of their queries and keys."""
    products = [x for piece in pieces for x in piece.products]
    rows = _table([x.rows for x in products], places, labels, groups)
    cols = _table([x.cols for x in products], places, labels, groups)
    return _laid_by(pieces, rows, cols, len(groups))


def _laid_by(pieces: Sequence[Piece], rows: Table, cols: Table, leads: int) -> Side:
    products = [x for piece in pieces for x in piece.products]
    laid = [_laid(piece, rows, cols, leads) for piece in pieces]
    q = _laid_out([(x.q, x.rows) for x in products], rows, leads)
    return Side(rows, cols, laid, q, _laid_out([(x.k, x.cols) for x in products], cols, leads))


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
    if found.q is not None:
        found.q[gone[:, :-1]] = 0
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


def _laid(piece: Piece, rows: Table, cols: Table, leads: int) -> Laid:
    """A piece with its rows in order, those of each head and text together."""
    found, m = rows.find(piece.rows.flatten()), piece.cols.shape[-1]
    (known,) = (found != NOWHERE).nonzero(as_tuple=True)
    row = found[known]
    lead, position = rows.lead[row], rows.position[row]
    order = (lead * rows.length + position).argsort()
    known, lead, position = known[order], lead[order], position[order]
    count = lead.bincount(minlength=leads)
    slot = torch.arange(len(lead), device=lead.device) - (count.cumsum(0) - count)[lead]
    shape = leads, int(count.max())
    at = lead.new_full(shape, NOWHERE)
    keys, weights = lead.new_full((*shape, m), NOWHERE), piece.weights.new_zeros(*shape, m)
    key = cols.find(piece.cols.reshape(-1, m)[known])
    at[lead, slot] = position
    keys[lead, slot] = torch.where(key == NOWHERE, NOWHERE, cols.position[key])
    weights[lead, slot] = piece.weights.reshape(-1, m)[known]
    return Laid(at, keys, weights)


def _laid_out(parts: Sequence[tuple[Tensor, Tensor]], table: Table, leads: int) -> Tensor | None:
    """Rows (n, r, d) of products as (l, t, d) by their positions; None if copies differ."""
    widths = {x.shape[-1] for x, _ in parts}
    if len(widths) > 1:
        return None
    made = parts[0][0].new_zeros(leads * table.length, *widths)
    found = []
    for x, places in parts:
        entry = table.find(places)
        here = entry != NOWHERE
        entry = entry[here]
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
        own = one.at[one.at != NOWHERE].unique()
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


def _scale(side: Side) -> float:
    """The factor of the scores, read off the logarithms of some weights."""
    assert side.q is not None and side.k is not None
    q, k, above, below = side.q, side.k, 0.0, 0.0
    for one in side.laid:
        for row in {0, one.at.shape[1] // 2, one.at.shape[1] - 1}:
            keys, weights = one.keys[:, row], one.weights[:, row].double()
            seen = (keys != NOWHERE) & (weights > 1e-30)
            mine = k[torch.arange(len(k), device=k.device)[:, None], keys.clamp_min(0)].double()
            mine_q = q[torch.arange(len(q), device=q.device), one.at[:, row].clamp_min(0)].double()
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


def _given(laid: Sequence[Laid], sizes: tuple[int, ...], real: InPieces, why: str) -> Call:
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
    return Call(*none, none[1], None, how, "by hand", as_it_is=why, real=real)
