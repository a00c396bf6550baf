"""Calls of one generation as one matrix: rows of all calls, keys once, beams along their paths.

At each step a growing cache shows the old keys again, a static one also columns that are not
written yet, a sliding one only the last keys, and beams show them in another order. The old keys
among those that a call shows tell which row continues which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from intently.core.masks import Geometry
from intently.observe.generation.call_masks import (
    Piece,
    first_part,
    joined_how,
    looked_at,
    may_join,
    of_queries,
)
from intently.observe.storage import mmap_pool
from intently.observe.storage.append_buffer import Growing
from intently.observe.storage.stores import Kept, KeptSpec, Store, packed
from intently.observe.watching.call import AttentionSpec

PENDING = 64
"""Rows that stay in memory before they are written to a file."""


@dataclass
class Block:
    """Queries and new keys of some calls, (b, …, n, d).

    Row i continues row ``parents[i]`` of the block before; without ``parents``, row i.
    """

    q: Kept
    k: Kept | None
    parents: Tensor | None = None

    def appended(self, q: Tensor, k: Tensor | None, parents: Tensor | None) -> bool:
        """Append a call along ``parents`` if it fits; return whether it did."""
        kept = [x for x in (self.q, self.k) if x is not None]
        added = [x for x in (q, k) if x is not None]
        fits = [isinstance(old, Growing) and old.fits(x, parents) for old, x in zip(kept, added)]
        if len(kept) != len(added) or not all(fits):
            return False
        if parents is not None:
            self.parents = parents if self.parents is None else self.parents[parents]
        for old, x in zip(kept, added):
            assert isinstance(old, Growing)
            old.append(x, parents)
        return True


@dataclass(frozen=True)
class Link:
    """How a call continues earlier ones: the first joined column that it shows, and the rows.

    ``maybe`` (b, rows) says which rows each row may continue, as far as its keys tell; ``parents``
    picks one of them for each row, None if row i continues row i. ``columns`` remain of a cache
    that was cropped before the call, None if it was not.
    """

    low: int
    maybe: Tensor
    parents: Tensor | None
    columns: int | None = None


class Joined:
    """The calls of one entry: their queries and keys in blocks, and the rest of each call."""

    def __init__(
        self, store: Store, q: Tensor, k: Tensor, how: KeptSpec, g: Geometry, given: bool = False
    ) -> None:
        self._store = store
        self._pieces = [Piece(g.t, 0, how, g, given=given)]
        keep = store.own if given else store.keep
        self._blocks = [Block(keep(q), keep(k))]
        self.columns = k.shape[-2]
        same = store.kind == "copy" and store.dtype in (None, k.dtype)
        self._kept_ends = None if same else packed(_ends(k))

    @property
    def last(self) -> Piece:
        """The last call."""
        return self._pieces[-1]

    @property
    def given(self) -> bool:
        """Whether no call has queries, but all have weights that are kept as they are."""
        return all(piece.given for piece in self._pieces)

    @property
    def rows(self) -> int:
        """How many rows b there are now."""
        return len(self._ends)

    @property
    def _ends(self) -> Tensor:
        """The first and the last key (b, …, 2, d), in the dtype that the model gave them."""
        if self._kept_ends is None:
            assert self._blocks[0].k is not None
            self._kept_ends = _ends(self._blocks[0].k.get())
        return self._kept_ends

    def may_be_joined_by(self, how: AttentionSpec, given: bool) -> bool:
        """Whether a call differs from these at most in masks, biases and dropout."""
        return may_join(how, of_queries(self._pieces), given or self.given)

    def begins_like(self, k: Tensor) -> bool:
        """Whether each row of keys k (b, …, s, d) begins with the first key of a row of these."""
        first = self._ends[..., 0, :]
        if k.shape[1:-2] != first.shape[1:-1] or k.shape[-1] != first.shape[-1]:
            return False
        return k.dtype == first.dtype and _same_rows(k[..., 0, :], first) is not None

    def continued_by(self, k: Tensor, new: int) -> Link | None:
        """How a call with keys k (b, …, s, d), the last ``new`` of them its own, continues this.

        None if it does not, or may do so in several ways.
        """
        old, ends = k.shape[-2] - new, self._ends
        if not 1 <= old <= self.columns or k.ndim != ends.ndim or k.dtype != ends.dtype:
            return None
        if k.shape[1:-2] != ends.shape[1:-2] or k.shape[-1] != ends.shape[-1]:
            return None
        low = self.columns - old
        maybe = _same_rows(k[..., old - 1, :], ends[..., 1, :])
        if maybe is None:
            return _only(self._cropped(k, old))
        if bool((maybe.sum(-1) == 1).all()):
            first = ends[..., 0, :] if low == 0 else self._column(low)
            first = first.index_select(0, maybe.int().argmax(-1))
            found = torch.equal(k[..., 0, :].to(first.dtype), first)
        else:
            maybe = self._by_history(maybe, k[..., :old, :], low)
            found = bool(maybe.any(-1).all())
        links = [Link(low, maybe, _chosen(maybe))] if found else []
        return _only(links + (self._cropped(k, old) if low or not found else []))

    def _cropped(self, k: Tensor, old: int) -> list[Link]:
        """How a call that shows the last ``old`` kept columns may continue after a crop.

        Assisted decoding crops a cache within its last call, where drafts were rejected, and
        another key takes their place. No row that stays may have seen the columns that go.
        """
        last, most = self.last, min(self.last.t - 1, self.columns - old)
        began = len(self._pieces) > 1 or last.t == last.geometry.s
        if most < 1 or not began or self._blocks[-1].k is None or len(k) != self.rows:
            return []
        kept = self._all("k")
        shown, new = k[..., :old, :].to(kept.dtype), k[..., old, :].to(kept.dtype)
        end = self.columns - most  # at least so many columns stay
        alike = (kept[..., end - 1 : -1, :] == shown[..., -1:, :]).movedim(-2, 0).flatten(1).all(1)
        found: list[Link] = []
        for columns in (end + alike.nonzero().flatten()).tolist():
            low, left = columns - old, last.t - self.columns + columns
            same = torch.equal(kept[..., low:columns, :], shown)
            if not same or torch.equal(kept[..., columns, :], new):
                continue
            looks = looked_at(last.how.get(), last.geometry)
            if not bool(looks[..., :left, columns - last.low :].any()):
                rows = torch.eye(len(k), dtype=torch.bool, device=k.device)
                found.append(Link(low, rows, None, columns))
        return found

    def crop(self, columns: int) -> None:
        """Keep the first ``columns``; forget the rows of the last call that read later ones.

        Raises `OSError` if the disk is full, and forgets nothing then.
        """
        block, last = self._blocks[-1], self.last
        assert block.k is not None
        cut = self.columns - columns
        how, g = first_part(last.how.get(), last.geometry, last.t - cut, columns - last.low)
        q, k = (
            x.cropped(cut) if isinstance(x, Growing) else self._store.keep(x.get()[..., :-cut, :])
            for x in (block.q, block.k)
        )
        block.q, block.k = q, k
        self._pieces[-1] = replace(last, t=g.t, how=self._store.how(how), geometry=g)
        self.columns = columns

    def shown_again(self, k: Tensor, maybe: Tensor) -> Link | None:
        """How a call that shows the kept keys again continues this, given the possible rows.

        Compares the first and the last key.
        """
        ends = self._ends
        if k.shape[1:] != (*ends.shape[1:-2], self.columns, ends.shape[-1]):
            return None
        if k.dtype != ends.dtype or maybe.shape != (len(k), len(ends)):
            return None
        same = _same_rows(_ends(k), ends)
        if same is None or not bool((same & maybe).any(-1).all()):
            return None
        return Link(0, same & maybe, _chosen(same & maybe))

    def add(self, q: Tensor, k: Tensor | None, piece: Piece) -> None:
        """Add a call that continues this one; k (b, …, new, d) holds its own keys only.

        Raises `OSError` if the disk is full; the earlier calls are still held then.
        """
        last, dtype = self._blocks[-1], self._store.dtype
        full = isinstance(last.q, Growing) and last.q.shape[-2] >= PENDING
        if full and self._store.kind == "disk":
            written = self._store.own(last.q.get())
            last.k = last.k and self._store.own(last.k.get())
            last.q = written
        if not last.appended(q, k, piece.parents):
            rows = Growing(q, dtype or q.dtype)
            self._blocks.append(
                Block(rows, None if k is None else Growing(k, dtype or k.dtype), piece.parents)
            )
        self._pieces.append(piece)
        if piece.parents is not None:
            self._kept_ends = self._ends.index_select(0, piece.parents)
        if k is not None:
            self.columns += k.shape[-2]
            self._ends[..., 1, :] = k[..., -1, :]

    def compact(self) -> None:
        """Join the blocks into one, along the paths of the last rows.

        Raises `OSError` if the disk is full; everything can still be read then.
        """
        if len(self._blocks) == 1:
            return
        last = self._blocks[-1]
        moved = any(block.parents is not None for block in self._blocks)
        keys = [block.k for block in self._blocks if block.k is not None]
        if len(keys) > 1 or (moved and last.k is None):
            keys = [self._store.join(self._paths("k"))]
        for block in self._blocks:
            block.k = None
        (last.k,) = keys
        self._blocks = [Block(self._store.join(self._paths("q")), last.k)]

    def operands(self) -> tuple[Tensor, Tensor]:
        """Queries (b, …, t, d) and keys (b, …, s, d) of all calls, along the rows of the last.

        They are joined in memory if the disk has no room.
        """
        try:
            self.compact()
            (block,) = self._blocks
            assert block.k is not None
            q, k = block.q.get(), block.k.get()
        except OSError:
            q, k = self._all("q"), self._all("k")
        if self.given:
            q, k = q[..., :0], k[..., :0].to(q.dtype)
        return q.to(k.dtype), _padded(k, self.shape[-1])

    def how(self) -> AttentionSpec:
        """The other arguments of `attend`."""
        return joined_how(self._pieces)

    def check(self) -> None:
        """Raise the errors of reading, such as `StaleError`."""
        self.operands()
        self.how()

    @property
    def shape(self) -> tuple[int, ...]:
        """(b, h, t, s) of all calls."""
        t, s = sum(x.t for x in self._pieces), max(x.low + x.geometry.s for x in self._pieces)
        return (*self.last.geometry.lead, t, max(s, self.columns))

    def shown(self) -> Tensor:
        """The kept keys (b, …, s, d) that the last call saw."""
        piece = self.last
        k = _padded(self._all("k"), piece.low + piece.geometry.s)
        return k[..., piece.low : piece.low + piece.geometry.s, :]

    def _all(self, which: str) -> Tensor:
        """The queries or keys of all calls, along the rows of the last."""
        return mmap_pool.joined(self._paths(which))

    def _paths(self, which: str) -> list[Tensor]:
        """The same, part by part."""
        found: list[Tensor] = []
        for block, rows in self._backwards():
            kept: Kept | None = getattr(block, which)
            if kept is not None:
                parts = kept.parts() if isinstance(kept, Growing) else [kept.get()]
                found += [_picked(x, rows) for x in reversed(parts)]
        return found[::-1]

    def _backwards(self) -> Iterator[tuple[Block, Tensor | None]]:
        """Each block, the last one first, with its rows that the last call continues."""
        rows: Tensor | None = None
        for block in reversed(self._blocks):
            yield block, rows
            if block.parents is not None:
                rows = block.parents if rows is None else block.parents[rows]

    def _column(self, at: int) -> Tensor:
        """The key in column ``at`` (b, …, d), along the rows of the last call."""
        start = self.columns
        for block, rows in self._backwards():
            if block.k is not None:
                start -= block.k.shape[-2]
                if start <= at:
                    return _picked(block.k.get()[..., at - start, :], rows)
        raise AssertionError("columns are counted from 0")

    def _by_history(self, maybe: Tensor, shown: Tensor, low: int) -> Tensor:
        """The possible rows (b, rows) that agree in all keys that a row shows."""
        kept = self._all("k")[..., low : self.columns, :]
        shown, found = shown.to(kept.dtype), maybe.clone()
        for row, parent in maybe.nonzero().tolist():
            found[row, parent] = torch.equal(kept[parent], shown[row])
        return found


def _padded(k: Tensor, s: int) -> Tensor:
    """Keys (…, s, d), zeros for those that a static cache has not written."""
    return k if k.shape[-2] >= s else F.pad(k, (0, 0, 0, s - k.shape[-2]))


def _only(links: list[Link]) -> Link | None:
    """The only one, None if there are none or several."""
    return links[0] if len(links) == 1 else None


def _ends(k: Tensor) -> Tensor:
    """The first and the last key, (b, …, 2, d)."""
    return torch.stack([k[..., 0, :], k[..., -1, :]], -2)


def _picked(x: Tensor, rows: Tensor | None) -> Tensor:
    return x if rows is None else x.index_select(0, rows)


def _chosen(maybe: Tensor) -> Tensor | None:
    """The row that each row continues, its own if possible; None if all continue their own."""
    n, rows = maybe.shape
    own = torch.arange(n, device=maybe.device)
    if n == rows and bool(maybe.diagonal().all()):
        return None
    first = maybe.int().argmax(-1)
    stays = maybe[own, own.clamp(max=rows - 1)] & (own < rows)
    return torch.where(stays, own, first)


def _same_rows(a: Tensor, b: Tensor) -> Tensor | None:
    """Which rows of a (n, …) and b (m, …) are equal, (n, m); None if a row of a equals none."""
    if len(a) == len(b) == 1:
        return torch.ones(1, 1, dtype=torch.bool, device=a.device) if torch.equal(a, b) else None
    same = _fingerprints(a)[:, None] == _fingerprints(b)
    return same if bool(same.any(-1).all()) else None


_BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16}


def _fingerprints(x: Tensor) -> Tensor:
    """A number for each row of x (n, …), equal for equal bits."""
    bits = x.detach().reshape(len(x), -1).view(_BITS[x.element_size()]).long()
    mixed = (bits ^ (bits >> 15)) * 0x2545F4914F6CDD1D
    steps = torch.arange(1, bits.shape[-1] + 1, device=x.device) * 0x5DEECE66D
    return ((mixed ^ (mixed >> 29)) * (2 * steps + 1)).sum(-1)
