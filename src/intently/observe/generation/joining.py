"""Calls of one generation as one matrix: rows of all calls, keys once, beams along their paths.

At each step a growing cache shows the old keys again, a static one also columns that are not
written yet, a sliding one only the last keys, and beams show them in another order. The old keys
among those that a call shows tell which row continues which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intently.core.biases import TensorBias, as_bias
from intently.core.masks import Geometry, Mask, allowed, causal, is_plain_causal
from intently.core.matrix.blocks import InBlocks
from intently.foundation.values import Value
from intently.observe.storage.stores import Growing, Kept, KeptSpec, Store
from intently.observe.watching.call import AttentionSpec, Call, operand
from intently.observe.watching.mask_inference import simplified


@dataclass(frozen=True)
class Piece:
    """One call, whose matrix ``geometry`` begins at column ``low`` of the joined one.

    Its rows continue the rows ``parents`` of the call before; without ``parents``, the same ones.
    """

    how: KeptSpec
    geometry: Geometry
    low: int = 0
    parents: Tensor | None = None

    @property
    def end(self) -> int:
        """The column at which its matrix ends."""
        return self.low + self.geometry.s

    def may_join(self, how: AttentionSpec, g: Geometry) -> bool:
        """Whether a call differs at most in rows, lengths, masks, biases and dropout."""
        old, names = self.how.how, ("score", "scale", "softcap", "sinks")
        kinds = type(old.weights) is type(how.weights) and self.geometry.lead[1:] == g.lead[1:]
        return kinds and all(_alike(getattr(old, name), getattr(how, name)) for name in names)


@dataclass(frozen=True)
class Link:
    """How a call continues earlier ones: the first joined column that it shows, and the rows.

    ``maybe`` (b, rows) says which rows each row may continue, as far as its keys tell; ``parents``
    picks one of them for each row, None if row i continues row i. ``columns`` remain of a cache
    that was cropped before the call, None if it was not.
    """

    low: int
    maybe: Tensor
    columns: int | None = None

    @property
    def parents(self) -> Tensor | None:
        """The row that each row continues, its own if possible; None if all continue their own."""
        (n, rows), maybe = self.maybe.shape, self.maybe
        if n == rows and bool(maybe.diagonal().all()):
            return None
        own = torch.eye(n, rows, dtype=torch.bool, device=maybe.device)
        return (maybe.int() + (maybe & own)).argmax(-1)


class Rows:
    """The calls of one entry: their queries q (b, h, t, d) and keys k (b, g, s, d), and the rest.

    Those of one call at first.
    """

    def __init__(self, q: Kept, k: Kept, how: KeptSpec, g: Geometry | None = None) -> None:
        g = g or Geometry(q.shape[:-2], q.shape[-2], k.shape[-2], torch.device("cpu"))
        self._q, self._k, self._pieces = q, k, [Piece(how, g)]

    @property
    def shape(self) -> tuple[int, ...]:
        """(b, h, t, s) of all calls."""
        s = max([piece.end for piece in self._pieces])
        return (*self.last.geometry.lead, self._q.shape[-2], max(s, self._k.shape[-2]))

    @property
    def last(self) -> Piece:
        """The last call."""
        return self._pieces[-1]

    def operands(self) -> tuple[Tensor, Tensor]:
        """Queries (b, …, t, d) and keys (b, …, s, d) of all calls, along the rows of the last."""
        q, k = self._q.get(), self._k.get()
        if self.last.how.how.weights is not None:
            q, k = q[..., :0], k[..., :0].to(q.dtype)
        return q.to(k.dtype), _padded(k, self.shape[-1])

    def how(self) -> AttentionSpec:
        """The other arguments of `attend`."""
        return joined_how(self._pieces)

    def check(self) -> None:
        """Raise the errors of reading, such as `StaleError`, without computing or reading."""
        for x in (self._q, self._k, *(x for piece in self._pieces for x in piece.how.tensors)):
            x.check()


class OpenRows(Rows):
    """Rows that other calls may continue; ``_ends`` (b, …, 2, d) are the first and the last key.

    These have the dtype that the model gave them, and are known when references have changed.
    """

    def __init__(
        self, q: Kept, k: Kept, how: KeptSpec, g: Geometry, store: Store, shown: Tensor
    ) -> None:
        super().__init__(q, k, how, g)
        self._q, self._k, self._store = Growing(q, store), Growing(k, store), store
        self._ends = _ends_of(shown.detach())

    @property
    def b(self) -> int:
        """How many rows there are now."""
        return len(self._ends)

    @property
    def columns(self) -> int:
        """How many keys there are now."""
        return self._k.shape[-2]

    def begins_like(self, k: Tensor) -> bool:
        """Whether each row of keys k (b, …, s, d) begins with the first key of a row of these."""
        return self._like(k) and _same_rows(k[..., 0, :], self._ends[..., 0, :]) is not None

    def _like(self, k: Tensor) -> bool:
        """Whether keys (b, …, s, d) have the axes … and d, and the dtype, of these."""
        ends = self._ends
        same = (*k.shape[1:-2], k.shape[-1]) == (*ends.shape[1:-2], ends.shape[-1])
        return same and k.dtype == ends.dtype

    def continued_by(self, k: Tensor, new: int) -> Link | None:
        """How a call with keys k (b, …, s, d), the last ``new`` of them its own, continues this.

        None if it does not, or may do so in several ways.
        """
        old = k.shape[-2] - new
        if not 1 <= old <= self.columns or not self._like(k):
            return None
        low, links = self.columns - old, list[Link]()
        maybe = _same_rows(k[..., old - 1, :], self._ends[..., 1, :])
        if maybe is not None and bool((maybe.sum(-1) == 1).all()):
            first = self._ends[..., 0, :] if low == 0 else self._k.parts(low)[0][..., 0, :]
            first = first.index_select(0, maybe.int().argmax(-1))
            if torch.equal(k[..., 0, :].to(first.dtype), first):
                links.append(Link(low, maybe))
        elif maybe is not None:  # the rows that agree in all keys that a row shows
            kept = torch.cat(self._k.parts(low), -2)
            for row, parent in maybe.nonzero().tolist():
                maybe[row, parent] = torch.equal(kept[parent], k[row, ..., :old, :].to(kept.dtype))
            if bool(maybe.any(-1).all()):
                links.append(Link(low, maybe))
        if low or not links:
            links += self._cropped(k, old)
        return links[0] if len(links) == 1 else None

    def _cropped(self, k: Tensor, old: int) -> list[Link]:
        """How a call that shows the last ``old`` kept columns may continue after a crop.

        Assisted decoding crops a cache within its last call, where drafts were rejected, and
        another key takes their place. No row that stays may have seen the columns that go.
        """
        last, t, width = self.last, self.last.geometry.t, self.columns
        most, began = min(t - 1, width - old), len(self._pieces) > 1 or t == last.geometry.s
        if most < 1 or not began or len(k) != self.b:
            return []
        kept = torch.cat(self._k.parts(), -2)
        shown, new = k[..., :old, :].to(kept.dtype), k[..., old, :].to(kept.dtype)
        end = width - most  # at least so many columns stay
        alike = (kept[..., end - 1 : -1, :] == shown[..., -1:, :]).movedim(-2, 0).flatten(1).all(1)
        found: list[Link] = []
        for columns in (end + alike.nonzero().flatten()).tolist():
            low, left = columns - old, t - width + columns
            same = torch.equal(kept[..., low:columns, :], shown)
            if not same or torch.equal(kept[..., columns, :], new):
                continue
            looks = looked_at(last.how.get(), last.geometry)
            if not bool(looks[..., :left, columns - last.low :].any()):
                rows = torch.eye(len(k), dtype=torch.bool, device=k.device)
                found.append(Link(low, rows, columns))
        return found

    def _crop(self, columns: int) -> None:
        """Keep the first ``columns``; forget the rows of the last call that read later ones."""
        last, cut = self.last, self.columns - columns
        t, s = last.geometry.t - cut, columns - last.low
        how, g = first_part(last.how.get(), last.geometry, t, s)
        kept, (q, k) = self._store.how(how), (x.cropped(cut) for x in (self._q, self._k))
        self._q, self._k = q, k
        self._pieces[-1] = replace(last, how=kept, geometry=g)

    def shown_again(self, k: Tensor, maybe: Tensor) -> Link | None:
        """How a call that shows the kept keys again continues this, given the possible rows.

        Compares the first and the last key.
        """
        fits = k.shape[-2] == self.columns and maybe.shape == (len(k), self.b)
        same = _same_rows(_ends_of(k), self._ends) if fits and self._like(k) else None
        if same is None or not bool((same & maybe).any(-1).all()):
            return None
        return Link(0, same & maybe)

    def add(self, q: Tensor, k: Tensor | None, how: KeptSpec, g: Geometry, link: Link) -> None:
        """Add a call that continues this one; k (b, …, new, d) holds its own keys only.

        Raises `OSError` if the disk is full, `MemoryRefused` if weights fill the budget; the
        earlier calls are still held then.
        """
        if link.columns is not None:
            self._crop(link.columns)
        for x in (self._q, self._k):
            x.settle()
        parents = link.parents
        self._q.append(q, parents)
        self._k.append(k, parents)
        self._pieces.append(Piece(how, g, link.low, parents))
        if parents is not None:
            self._ends = self._ends[parents]
        if k is not None:
            self._ends[..., 1, :] = k[..., -1, :]

    def shown(self) -> Tensor:
        """The kept keys (b, …, s, d) that the last call saw."""
        kept, s = torch.cat(self._k.parts(self.last.low), -2), self.last.geometry.s
        return _padded(kept, s)[..., :s, :]


def _padded(k: Tensor, s: int) -> Tensor:
    """Keys (…, s, d), zeros for those that a static cache has not written."""
    return k if k.shape[-2] >= s else F.pad(k, (0, 0, 0, s - k.shape[-2]))


def _ends_of(k: Tensor) -> Tensor:
    """The first and the last key, (b, …, 2, d)."""
    return torch.stack([k[..., 0, :], k[..., -1, :]], -2)


def _same_rows(a: Tensor, b: Tensor) -> Tensor | None:
    """Which rows of a (n, …) and b (m, …) are equal, (n, m); None if a row of a equals none."""
    if len(a) == len(b) == 1:
        return torch.ones(1, 1, dtype=torch.bool, device=a.device) if torch.equal(a, b) else None
    bits = torch.cat([a, b]).detach().flatten(1).view(torch.uint8)
    kinds = bits.unique(dim=0, return_inverse=True)[1]
    same = kinds[: len(a), None] == kinds[len(a) :]
    return same if bool(same.any(-1).all()) else None


def _alike(a: object, b: object) -> bool:
    """Whether two numbers, tensors or values are the same."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a is b or (a.shape == b.shape and torch.equal(a, b))
    if type(a) is type(b) and isinstance(a, Value) and isinstance(b, Value):
        return len(a.parts) == len(b.parts) and all(map(_alike, a.parts, b.parts))
    return type(a) is type(b) and a == b


# --- masks, biases and weights --------------------------------------------------------------------


def joined_how(pieces: Sequence[Piece]) -> AttentionSpec:
    """Return the arguments of `attend` beside the queries and keys of all calls.

    Masks and biases are a value if they agree, else a dense tensor.
    """
    hows = [piece.how.get() for piece in pieces]
    last = hows[-1]
    if len(pieces) == 1:
        return last
    if last.weights is not None:
        known = all(how.softmax is not None for how in hows)
        softmax = _written(pieces, "softmax") if known else None
        return replace(last, weights=_written(pieces, "weights"), softmax=softmax)
    mask, bias = _plain(pieces, hows), last.bias
    if mask is None:
        seen = AttentionSpec(mask=allowed(_written(pieces, "mask")))
        mask = simplified(seen, _whole(pieces)).mask
    if not all(_alike(how.bias, bias) and type(how.bias) is not TensorBias for how in hows):
        bias = as_bias(_written(pieces, "bias"))
    return replace(last, mask=mask, bias=bias)


def _plain(pieces: Sequence[Piece], hows: Sequence[AttentionSpec]) -> Mask | None:
    """The causal mask of a first call that single steps follow which see everything before."""
    mask, first = hows[0].mask, pieces[0].geometry
    mask = causal() if mask is None and first.t == first.s == 1 else mask
    if mask is None or not is_plain_causal(mask) or pieces[-1].geometry.s <= first.s:
        return None
    steps = (p.geometry.t == 1 and not p.low and h.mask is None for p, h in zip(pieces, hows))
    next(steps)
    return mask if all(steps) else None


def _whole(pieces: Sequence[Piece]) -> Geometry:
    """The geometry of all calls."""
    t = sum(piece.geometry.t for piece in pieces)
    return pieces[-1].geometry._replace(t=t, s=max(piece.end for piece in pieces))


def _written(pieces: Sequence[Piece], part: str) -> Tensor:
    """The mask, bias, weights or softmax of all calls, (…, Σ t, s), along the rows of the last."""
    whole, tiles, rows = _whole(pieces), list[Tensor](), None
    for piece in reversed(pieces):
        tile = _dense(piece.how.get(), piece.geometry, part)
        tile = tile[rows] if rows is not None and tile.shape[0] > 1 else tile
        tiles.insert(0, F.pad(tile, (piece.low, whole.s - piece.end)))
        if piece.parents is not None:
            rows = piece.parents if rows is None else piece.parents[rows]
    dtype = max((x.dtype for x in tiles), key=lambda d: d.itemsize)
    lead = torch.broadcast_shapes(*(x.shape[:-2] for x in tiles))
    return torch.cat([x.to(dtype).expand(*lead, *x.shape[-2:]) for x in tiles], -2)


def _dense(how: AttentionSpec, g: Geometry, part: str) -> Tensor:
    """A part of one call, (…, t, s) with all axes, of which those before t may have size 1."""
    x = getattr(how, part)
    if x is None:
        x = torch.full((1, 1), part == "mask", device=g.device)
    elif part == "mask":
        x = x.dense(g)
    elif part == "bias":
        x = x.tile(g, *(torch.arange(n, device=g.device) for n in (g.t, g.s)))
    x = x[(None,) * (len(g.lead) + 2 - x.ndim)]
    return x.expand(*x.shape[:-2], g.t, g.s)


def looked_at(how: AttentionSpec, g: Geometry) -> Tensor:
    """The entries (…, t, s) that a call may attend; none in rows that see nothing.

    The plain formula spreads such rows (of padding) over all keys if the lowest number of a dtype
    stands for −∞.
    """
    if isinstance(how.weights, Tensor):
        return how.weights != 0
    seen, added = _dense(how, g, "mask"), _dense(how, g, "bias")
    return seen if how.bias is None else seen & (added > torch.finfo(added.dtype).min / 2)


def first_part(how: AttentionSpec, g: Geometry, t: int, s: int) -> tuple[AttentionSpec, Geometry]:
    """The arguments of a call for its first t queries and s keys."""
    part, changed = g._replace(t=t, s=s), dict[str, Any]()
    moved = type(how.bias) is TensorBias or g.s - s != g.t - t
    for name, made in (("mask", allowed), ("bias", as_bias), ("weights", None), ("softmax", None)):
        if getattr(how, name) is not None and (name != "bias" or moved):
            x = _dense(how, g, name)[..., :t, :s]
            changed[name] = made(x) if made else x
    return simplified(replace(how, **changed), part), part


def trimmed(how: AttentionSpec, k: Tensor, g: Geometry) -> tuple[AttentionSpec, Tensor, Geometry]:
    """A call without the last columns of a static cache: not written yet, and seen by no query.

    Unwritten keys are zeros. Keys of padding mostly are not; where they are, queries see further
    than a cache lets them, because the last keys are not their own. Queries of padding that see
    nothing, which the plain formula spreads over all columns, are spread over the remaining ones.
    """
    known = how.mask is how.bias is how.weights is None or isinstance(how.weights, InBlocks)
    if g.s <= g.t or known or bool(k[..., -1:, :].any()):
        return how, k, g
    looks = looked_at(how, g).reshape(-1, g.t, g.s).any(0)
    columns = looks.any(0).nonzero()
    end = int(columns.max()) + 1 if len(columns) else g.s
    written = end == g.s or bool(k[..., end:, :].any())
    if written or (end != g.t and bool(looks.triu(end - g.t + 1).any())):
        return how, k, g
    how, g = first_part(how, g, g.t, end)
    return how, k[..., :end, :], g


def written(k: Tensor, t: int) -> Tensor:
    """The keys without those of a static cache that are not written yet, though queries see them.

    These are zeros, and at least the t last ones that are not belong to the queries.
    """
    if k.shape[-2] <= t or bool(k[..., -1:, :].any()):
        return k
    columns = k.reshape(-1, *k.shape[-2:]).any(-1).any(0).nonzero()
    end = int(columns.max()) + 1 if len(columns) else 0
    return k[..., :end, :] if end >= t else k


def one_by_one(call: Call, how: AttentionSpec, g: Geometry) -> tuple[Call, AttentionSpec, Geometry]:
    """Split m queries (b, h, m, d) that share their keys into rows (b·m, h, 1, d) of their own.

    This is how the beams of our decoders query an encoder: row i·m + j is query j of row i.
    """
    b, m = g.lead[0], g.t
    apart = g._replace(lead=(b * m, *g.lead[1:]), t=1)

    def row(x: Tensor) -> Tensor:
        return x.movedim(-2, 1).flatten(0, 1).unsqueeze(-2)

    assert isinstance(call.y, Tensor)
    k, v = (operand(x).repeat_interleave(m, 0) for x in (call.k, call.v))
    if how.mask is not None:
        seen = _dense(how, g, "mask")
        how = replace(how, mask=allowed(row(seen.expand(b, *seen.shape[1:]))))
    how = simplified(how, apart)
    return replace(call, q=row(operand(call.q)), k=k, v=v, y=row(call.y), how=how), how, apart
