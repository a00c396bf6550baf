"""Calls of one generation as one matrix: rows of all calls, keys once, beams along their paths.

At each step a growing cache shows the old keys again, a static one also columns that are not
written yet, a sliding one only the last keys, and beams show them in another order. The old keys
among those that a call shows tell which row continues which.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from intently.core.masks import Geometry
from intently.observe.generation.call_masks import Piece, first_part, joined_how, looked_at
from intently.observe.storage import memory
from intently.observe.storage.stores import Growing, Kept, KeptSpec, Store
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
        n, rows = self.maybe.shape
        own = torch.arange(n, device=self.maybe.device)
        if n == rows and bool(self.maybe.diagonal().all()):
            return None
        stays = self.maybe[own, own.clamp(max=rows - 1)] & (own < rows)
        return torch.where(stays, own, self.maybe.int().argmax(-1))


class Rows:
    """The calls of one entry: their queries and keys in blocks, and the rest of each call.

    q (b, h, t, d) and k (b, g, s, d) are those of the first call. With a ``store``, others may
    continue it; ``k`` as the model gave it is then kept in ``ends``, the first and the last key
    (b, …, 2, d), unless it can be read.
    """

    def __init__(
        self,
        q: Kept,
        k: Kept,
        how: KeptSpec,
        g: Geometry | None = None,
        store: Store | None = None,
        ends: Tensor | None = None,
    ) -> None:
        g = g or Geometry(q.shape[:-2], q.shape[-2], k.shape[-2], torch.device("cpu"))
        self._pieces, self._blocks = [Piece(how, g)], [Block(q, k)]
        self.columns, self.store, self._kept_ends = k.shape[-2], store, ends

    @property
    def shape(self) -> tuple[int, ...]:
        """(b, h, t, s) of all calls."""
        t = sum(piece.geometry.t for piece in self._pieces)
        s = max(piece.low + piece.geometry.s for piece in self._pieces)
        return (*self.last.geometry.lead, t, max(s, self.columns))

    @property
    def last(self) -> Piece:
        """The last call."""
        return self._pieces[-1]

    @property
    def rows(self) -> int:
        """How many rows b there are now."""
        return len(self._ends)

    @property
    def _ends(self) -> Tensor:
        """The first and the last key (b, …, 2, d), in the dtype that the model gave them."""
        if self._kept_ends is None:
            assert self._blocks[0].k is not None
            self._kept_ends = ends_of(self._blocks[0].k.get())
        return self._kept_ends

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
        old, ends = k.shape[-2] - new, self._ends
        if not 1 <= old <= self.columns or not self._like(k):
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
        links = [Link(low, maybe)] if found else []
        return _only(links + (self._cropped(k, old) if low or not found else []))

    def _cropped(self, k: Tensor, old: int) -> list[Link]:
        """How a call that shows the last ``old`` kept columns may continue after a crop.

        Assisted decoding crops a cache within its last call, where drafts were rejected, and
        another key takes their place. No row that stays may have seen the columns that go.
        """
        last, t = self.last, self.last.geometry.t
        most = min(t - 1, self.columns - old)
        began = len(self._pieces) > 1 or t == last.geometry.s
        if most < 1 or not began or self._blocks[-1].k is None or len(k) != self.rows:
            return []
        kept = self._all("k")
        shown, new = k[..., :old, :].to(kept.dtype), k[..., old, :].to(kept.dtype)
        end = self.columns - most  # at least so many columns stay
        alike = (kept[..., end - 1 : -1, :] == shown[..., -1:, :]).movedim(-2, 0).flatten(1).all(1)
        found: list[Link] = []
        for columns in (end + alike.nonzero().flatten()).tolist():
            low, left = columns - old, t - self.columns + columns
            same = torch.equal(kept[..., low:columns, :], shown)
            if not same or torch.equal(kept[..., columns, :], new):
                continue
            looks = looked_at(last.how.get(), last.geometry)
            if not bool(looks[..., :left, columns - last.low :].any()):
                rows = torch.eye(len(k), dtype=torch.bool, device=k.device)
                found.append(Link(low, rows, columns))
        return found

    def crop(self, columns: int) -> None:
        """Keep the first ``columns``; forget the rows of the last call that read later ones.

        Raises `OSError` if the disk is full, `MemoryRefused` if weights fill the budget, and
        forgets nothing then.
        """
        block, last, store = self._blocks[-1], self.last, self.store
        assert block.k is not None and store is not None
        cut = self.columns - columns
        how, g = first_part(
            last.how.get(), last.geometry, last.geometry.t - cut, columns - last.low
        )
        kept = store.how(how)
        q, k = (
            x.cropped(cut) if isinstance(x, Growing) else store.keep(x.get()[..., :-cut, :])
            for x in (block.q, block.k)
        )
        block.q, block.k = q, k
        self._pieces[-1] = replace(last, how=kept, geometry=g)
        self.columns = columns

    def shown_again(self, k: Tensor, maybe: Tensor) -> Link | None:
        """How a call that shows the kept keys again continues this, given the possible rows.

        Compares the first and the last key.
        """
        ends, rows = self._ends, (len(k), self.rows)
        if not self._like(k) or k.shape[-2] != self.columns or maybe.shape != rows:
            return None
        same = _same_rows(ends_of(k), ends)
        if same is None or not bool((same & maybe).any(-1).all()):
            return None
        return Link(0, same & maybe)

    def add(self, q: Tensor, k: Tensor | None, piece: Piece) -> None:
        """Add a call that continues this one; k (b, …, new, d) holds its own keys only.

        Raises `OSError` if the disk is full; the earlier calls are still held then.
        """
        store, last, parents = self.store, self._blocks[-1], piece.parents
        assert store is not None
        if store.kind == "disk" and isinstance(last.q, Growing) and last.q.shape[-2] >= PENDING:
            written = store.own(last.q.get())
            last.q, last.k = written, last.k and store.own(last.k.get())
        here, there = (last.q, q), (last.k, k)
        fits = last.k is None if k is None else isinstance(last.k, Growing)
        if fits and isinstance(last.q, Growing):
            if parents is not None:
                last.parents = parents if last.parents is None else last.parents[parents]
            for kept, x in (here, there):
                if isinstance(kept, Growing) and x is not None:
                    kept.append(x, parents)
        else:
            keys = None if k is None else Growing(k, store.dtype or k.dtype)
            self._blocks.append(Block(Growing(q, store.dtype or q.dtype), keys, parents))
        self._pieces.append(piece)
        if parents is not None:
            self._kept_ends = self._ends.index_select(0, parents)
        if k is not None:
            self.columns += k.shape[-2]
            self._ends[..., 1, :] = k[..., -1, :]

    def operands(self) -> tuple[Tensor, Tensor]:
        """Queries (b, …, t, d) and keys (b, …, s, d) of all calls, along the rows of the last.

        They are joined for good, but only in memory for now if the disk has no room.
        """
        try:
            if len(self._blocks) > 1:
                k = self._joined("k")
                for block in self._blocks:
                    block.k = None
                self._blocks[-1].k = k
                self._blocks = [Block(self._joined("q"), k)]
            (block,) = self._blocks
            assert block.k is not None
            q, k = block.q.get(), block.k.get()
        except OSError:
            q, k = self._all("q"), self._all("k")
        if self.last.how.how.weights is not None:
            q, k = q[..., :0], k[..., :0].to(q.dtype)
        return q.to(k.dtype), _padded(k, self.shape[-1])

    def how(self) -> AttentionSpec:
        """The other arguments of `attend`."""
        return joined_how(self._pieces)

    def check(self) -> None:
        """Raise the errors of reading, such as `StaleError`, without computing or reading."""
        kept = [x for block in self._blocks for x in (block.q, block.k) if x is not None]
        for x in (*kept, *(x for piece in self._pieces for x in piece.how.tensors)):
            x.check()

    def shown(self) -> Tensor:
        """The kept keys (b, …, s, d) that the last call saw."""
        return _padded(self._all("k"), self.last.end)[..., self.last.low : self.last.end, :]

    def _all(self, which: str) -> Tensor:
        """The queries or keys of all calls, along the rows of the last."""
        return memory.joined(self._parts(which))

    def _joined(self, which: str) -> Kept:
        """The same, kept as one; raises `OSError` if the disk is full."""
        kept, *others = self._along(which)
        assert self.store is not None
        alone = not others and kept[1] is None
        return kept[0] if alone else self.store.join(self._parts(which))

    def _parts(self, which: str) -> list[Tensor]:
        """The same, part by part."""
        return [
            x if rows is None else x.index_select(0, rows)
            for kept, rows in self._along(which)
            for x in (kept.parts() if isinstance(kept, Growing) else [kept.get()])
        ]

    def _along(self, which: str) -> list[tuple[Kept, Tensor | None]]:
        """What is kept of each block, with its rows that the last call continues."""
        found: list[tuple[Kept, Tensor | None]] = []
        rows: Tensor | None = None
        for block in reversed(self._blocks):
            kept = block.q if which == "q" else block.k
            if kept is not None:
                found.append((kept, rows))
            if block.parents is not None:
                rows = block.parents if rows is None else block.parents[rows]
        return found[::-1]

    def _column(self, at: int) -> Tensor:
        """The key in column ``at`` (b, …, d), along the rows of the last call."""
        for part in self._parts("k"):
            if at < part.shape[-2]:
                return part[..., at, :]
            at -= part.shape[-2]
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


def ends_of(k: Tensor) -> Tensor:
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
