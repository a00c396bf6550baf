"""Rows of several softmaxes laid out by the positions of queries and keys, and their call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from intently.core.biases import Bias, TiledBias
from intently.core.masks import Mask
from intently.observe.sources.block_masks import mask_of, tiled
from intently.observe.sources.block_rows import Piece, Product
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
class Table:
    """The head and text (``lead``) and the position of each place of queries or of keys."""

    places: Tensor
    lead: Tensor
    position: Tensor
    length: int

    @cached_property
    def _entries(self) -> list[tuple[int, int, Tensor]]:
        """For each tensor its first and last place, and the entries of those between."""
        found, first = [], 0
        for count in (self.places >> BITS).unique_consecutive(return_counts=True)[1].tolist():
            mine = self.places[first : first + count]
            low, high = int(mine[0]), int(mine[-1])
            table = torch.full((high - low + 1,), NOWHERE, dtype=torch.int32, device=mine.device)
            table[mine - low] = torch.arange(first, first + count, device=mine.device).int()
            found.append((low, high, table))
            first += count
        return found

    def find(self, places: Tensor) -> Tensor:
        """Which entry of the table each place is (int32), −1 for nowhere."""
        made = torch.full(places.shape, NOWHERE, dtype=torch.int32, device=places.device)
        for low, high, table in self._entries:
            here = (places >= low) & (places <= high)
            at = (places - low).clamp_(0, high - low).flatten()
            torch.where(here, table.index_select(0, at).view(places.shape), made, out=made)
        return made


@dataclass
class Laid:
    """A piece with its rows in order: positions (l, r), keys (l, r, m) or −1.

    ``source`` (l, r) is where each row stands in the weights of the softmax ``number``.
    """

    number: int
    at: Tensor
    keys: Tensor
    source: Tensor

    def weights(self, given: Mapping[int, Tensor], lead: Tensor, row: Tensor) -> Tensor:
        """The weights (n, m) of some rows, given those of all softmaxes."""
        mine = given[self.number].view(-1, self.keys.shape[-1])
        source = self.source[lead, row]
        return mine[source.clamp_min(0)] * (source != NOWHERE)[..., None]


@dataclass
class Rows:
    """Which rows of a product come where in q or k."""

    number: int
    here: Tensor
    at: Tensor


@dataclass
class Side:
    """Pieces that share keys, and where their queries and keys come.

    ``gone`` (l, t) are rows in whose place others stand.
    """

    rows: Table
    cols: Table
    laid: list[Laid]
    q: list[Rows]
    k: list[Rows]
    gone: Tensor | None = None

    def operands(self, products: Mapping[int, Product]) -> tuple[Tensor, Tensor] | None:
        """Queries (l, t, d) and keys (l, s, d), None if copies of a row differ."""
        leads = len(self.laid[0].at)
        q = _laid_out([(x, products[x.number].q) for x in self.q], leads, self.rows.length)
        k = _laid_out([(x, products[x.number].k) for x in self.k], leads, self.cols.length)
        if q is None or k is None or q.shape[-1] != k.shape[-1]:
            return None
        if self.gone is not None:
            q[self.gone] = 0
        return q, k


@dataclass
class Plan:
    """How the softmaxes of some ``numbers`` are one matrix of ``sizes`` (…, t, s)."""

    numbers: set[int]
    sizes: tuple[int, ...]
    sides: list[Side]

    @cached_property
    def laid(self) -> list[Laid]:
        """All pieces."""
        return [x for side in self.sides for x in side.laid]

    @cached_property
    def mask(self) -> tuple[Mask | None, Bias | None]:
        """The keys that rows see, and a bias where they come repeatedly."""
        return mask_of([(x.at, x.keys) for x in self.laid], self.sizes)

    @cached_property
    def sample(self) -> tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
        """Some rows (n,), and of every piece the heads, the rows and where they come in these."""
        return _sample(self.laid)

    def call(self, weights: Mapping[int, Tensor], products: Mapping[int, Product]) -> Call:
        """The call of softmaxes with these weights."""
        laid, sizes, lead = self.laid, self.sizes, self.sizes[:-2]
        dtype = weights[laid[0].number].dtype
        real = InPieces(sizes, dtype, self.sample[0], self._sampled(weights))
        given = partial(_given, laid, sizes, weights, real)
        known = [x for x in (side.operands(products) for side in self.sides) if x is not None]
        if len(known) < len(self.sides):
            return given("queries or keys differ from block to block")
        mask, bias = self.mask
        scales = [_scale(side.laid, q, k, weights) for side, (q, k) in zip(self.sides, known)]
        q = torch.cat(
            [q if i == 0 else q * (scales[i] / scales[0]) for i, (q, _) in enumerate(known)], -1
        )
        k = torch.cat([k for _, k in known], -1)
        q, k = (x.reshape(*lead, *x.shape[-2:]) for x in (q, k))
        how = AttentionSpec(mask=mask, bias=bias, scale=scales[0])
        return Call(q, k, k, None, how, "by hand", real=real, as_weights=given)

    def _sampled(self, weights: Mapping[int, Tensor]) -> Tensor:
        """The weights (…, n, s) of the rows that are compared."""
        sizes = self.sizes
        rows, parts = self.sample
        made = weights[self.laid[0].number].new_zeros(
            len(self.laid[0].at), len(rows), sizes[-1] + 1
        )
        for one, (lead, row, slot) in zip(self.laid, parts):
            keys = one.keys[lead, row].long()
            keys = torch.where(keys == NOWHERE, sizes[-1], keys)
            flat = (lead * len(rows) + slot)[:, None] * (sizes[-1] + 1) + keys
            made.view(-1).scatter_add_(0, flat.flatten(), one.weights(weights, lead, row).flatten())
        return made[..., :-1].reshape(*sizes[:-2], len(rows), sizes[-1])


def laid_by(piece: Piece, rows: Table, cols: Table, leads: int) -> Laid:
    """A piece with its rows in order, those of each head and text together."""
    found, m = rows.find(piece.rows.flatten()).long(), piece.cols.shape[-1]
    (known,) = (found != NOWHERE).nonzero(as_tuple=True)
    row = found[known]
    lead, position = rows.lead[row], rows.position[row]
    order = (lead * rows.length + position).argsort()
    known, lead, position = known[order], lead[order], position[order]
    count = lead.bincount(minlength=leads)
    slot = torch.arange(len(lead), device=lead.device) - (count.cumsum(0) - count)[lead]
    shape = leads, int(count.max())
    at, source = lead.new_full(shape, NOWHERE), lead.new_full(shape, NOWHERE)
    at[lead, slot], source[lead, slot] = position, known
    entry = cols.find(piece.keys.roll(1)).long()  # −1 comes first
    of_key = torch.where(entry == NOWHERE, NOWHERE, cols.position[entry]).int()
    key = piece.cols.view(-1, m).index_select(0, known)
    key = of_key.index_select(0, key.flatten().add_(1)).view(key.shape)
    if len(known) == at.numel():
        return Laid(piece.number, at, key.view(*shape, m), source)
    keys = key.new_full((*shape, m), NOWHERE)
    keys[lead, slot] = key
    return Laid(piece.number, at, keys, source)


def placed(parts: Sequence[tuple[int, Tensor]], table: Table) -> list[Rows]:
    """Where the rows of products come, by their numbers and the places of their rows."""
    found = []
    for number, places in parts:
        entry = table.find(places).long()
        (here,) = (entry != NOWHERE).flatten().nonzero(as_tuple=True)
        entry = entry.flatten()[here]
        found.append(Rows(number, here, table.lead[entry] * table.length + table.position[entry]))
    return found


def _laid_out(parts: Sequence[tuple[Rows, Tensor]], leads: int, length: int) -> Tensor | None:
    """Rows (n, r, d) of products as (l, t, d) by their positions; None if copies differ."""
    widths = {x.shape[-1] for _, x in parts}
    if len(widths) > 1:
        return None
    made = parts[0][1].new_zeros(leads * length, *widths)
    found = []
    for rows, x in parts:
        some = x.flatten(0, 1)[rows.here]
        made[rows.at] = some
        found.append((rows.at, some))
    if any(not torch.equal(made[at], x) for at, x in found):
        return None
    return made.view(leads, length, -1)


def _sample(laid: Sequence[Laid]) -> tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
    some = []
    for one in laid:
        own = one.at[one.at != NOWHERE].unique()
        step = max(1, (len(own) - 1) // (SAMPLED - 1))
        some += [own[::step], own[-1:]]
    rows = torch.cat(some).unique()
    parts = []
    for one in laid:
        slot = torch.searchsorted(rows, one.at).clamp_max(len(rows) - 1)
        lead, row = (rows[slot] == one.at).nonzero(as_tuple=True)
        parts.append((lead, row, slot[lead, row]))
    return rows, parts


def _scale(laid: Sequence[Laid], q: Tensor, k: Tensor, given: Mapping[int, Tensor]) -> float:
    """The factor of the scores, read off the logarithms of some weights."""
    above, below = 0.0, 0.0
    lead = torch.arange(len(q), device=q.device)
    for one in laid:
        for row in {0, one.at.shape[1] // 2, one.at.shape[1] - 1}:
            keys = one.keys[:, row].long()
            weights = one.weights(given, lead, torch.full_like(lead, row)).double()
            seen = (keys != NOWHERE) & (weights > 1e-30)
            mine = k[lead[:, None], keys.clamp_min(0)].double()
            mine_q = q[lead, one.at[:, row].clamp_min(0)].double()
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


def _given(
    laid: Sequence[Laid],
    sizes: tuple[int, ...],
    weights: Mapping[int, Tensor],
    real: InPieces,
    why: str,
) -> Call:
    """The call with the weights themselves in place of queries and keys, in tiles."""
    if sum(x.keys.numel() for x in laid) > GIVEN:
        raise Unfit("there are too many weights")
    codes, values = [], []
    for one in laid:
        lead, row, column = (one.keys != NOWHERE).nonzero(as_tuple=True)
        at = (lead * sizes[-2] + one.at[lead, row]) * sizes[-1] + one.keys[lead, row, column]
        codes.append(at)
        mine = weights[one.number].view(-1, one.keys.shape[-1])
        values.append(mine[one.source[lead, row], column])
    code, same = torch.cat(codes).unique(return_inverse=True)
    value = torch.cat(values).float()
    value = value.new_zeros(len(code)).index_add_(0, same, value).log()
    index, tiles = tiled(code, value, sizes, -torch.inf)
    none = value.new_zeros(*sizes[:-1], 0), value.new_zeros(*sizes[:-2], sizes[-1], 0)
    how = AttentionSpec(bias=TiledBias(index, tiles))
    return Call(*none, none[1], None, how, "by hand", as_it_is=why, real=real)
