"""`Generations`: which calls continue which, and along which rows (the beams of a search)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from intently.core.masks import Geometry
from intently.nn.blocks import DecoderLayer
from intently.observe.generation.joining import Link, OpenRows, Rows, one_by_one
from intently.observe.recording.coverage import Coverage
from intently.observe.recording.recording import Entry
from intently.observe.storage.stores import KeptSpec, Store, identity
from intently.observe.watching.call import Call, Projected, Weights, operand
from intently.observe.watching.modules import OUTSIDE, Running

CROPPED = (
    "A cache was cropped within its last call (drafts that were rejected): rows that read what it "
    "forgot are left out, but for those of the last call of all."
)
OTHER_KEYS = (
    "{}: a cache showed other keys than those that were kept (cropped further back, or "
    "overwritten), or those of several: what follows is a call of its own."
)
APART = (
    "{}: queries see the same keys again, and nothing that was seen tells which of them belong "
    "together: each call is one of its own."
)
OPEN = 4
"""Entries of a module that the next call may continue: a module may have several caches."""


class Step(NamedTuple):
    """A call, normalised: masks as values, and no columns that a static cache has not written.

    ``matrix`` is its weights where the entry that keeps it is not the way to compute them. If only
    weights are known, the queries are zero, and the keys those that a cache shows, if any.
    """

    call: Call
    q: Tensor | Projected
    k: Tensor | Projected
    spec: KeptSpec
    geometry: Geometry
    matrix: Callable[[], Weights] | None = None


Place: TypeAlias = tuple[tuple[str, int], int]
"""The name of a call with how many of that name the forward of its module made before; and its
turn, how many the outermost forward made: there, one module may be called with several caches."""

Added: TypeAlias = tuple[Entry, Call, Callable[[], Weights]]
"""The entry that keeps a call, and the call with the weights that have to give its output."""


@dataclass(frozen=True)
class Path:
    """The last call of a self-attention: the rows that each row may continue, None for a first one.

    If its cache was reordered since, row i continues row ``index[i]``. After a crop, calls that saw
    the same keys may have rows of rejected drafts.
    """

    number: int = 0
    maybe: Tensor | None = None
    index: Tensor | None = None
    cropped: bool = False


@dataclass
class Opened:
    """The rows of an entry that the next call may continue, and the keys its first call showed."""

    entry: Entry
    rows: OpenRows
    path: int
    turn: int
    key: tuple[Any, ...]
    alive: StorageWeakRef


class Generations:
    """Counts the calls of every forward, joins the steps of a generation, follows its beams."""

    def __init__(self, store: Store, running: Running, covered: Coverage) -> None:
        self._store, self._running, self._covered = store, running, covered
        self._path = Path()
        self._open: dict[tuple[str, int], list[Opened]] = {}
        self._counts: dict[tuple[str, bool], tuple[int | None, int]] = {}

    def place(self, name: str, forward: int | None) -> Place:
        """Count a call of ``forward``, a number of `Running`; None for a call of no module."""
        numbers = []
        for outermost, now in enumerate((forward, next(iter(self._running.numbers), None))):
            before, count = self._counts.get((name, bool(outermost)), (None, -1))
            numbers.append(count + 1 if now is not None and now == before else 0)
            self._counts[name, bool(outermost)] = now, numbers[-1]
        return (name, numbers[0]), numbers[1]

    def reordered(self, index: Tensor) -> None:
        """A cache goes on with the rows ``index`` (b,) of the step before."""
        self._path = Path(self._path.number + 1, index=index)

    def rows(self, step: Step) -> Rows:
        """Keep the operands of a call that continues none."""
        _, q, k, spec, g, _ = step
        if isinstance(q, Projected) or isinstance(k, Projected):
            return Rows(self._store.keep(q), self._store.keep(k), spec, g)
        if g.t == k.shape[-2]:
            self._path = Path(self._path.number + 1)
        if 0 in (*q.shape, *k.shape):  # no key tells which call continues it
            return Rows(self._store.keep(q), self._store.keep(k), spec, g)
        keep = self._store.keep if spec.how.weights is None else self._store.own
        return OpenRows(keep(q), keep(k), spec, g, self._store, k)

    def keeps_weights(self, place: Place) -> bool:
        """Whether all entries that the next call may continue keep the weights themselves."""
        opened = self._open.get(place[0], [])
        return bool(opened) and all(x.rows.last.how.how.weights is not None for x in opened)

    def begin(self, place: Place, entry: Entry, call: Call) -> None:
        """Let the next calls continue an entry."""
        rows, (called, turn) = entry.rows, place
        if isinstance(rows, OpenRows) and (shown := call.shown) is not None:
            key, alive = identity(shown), StorageWeakRef(shown.untyped_storage())
            others = [x for x in self._open.get(called, []) if x.turn != turn]
            made = Opened(entry, rows, self._path.number, turn, key, alive)
            self._open[called] = [*others[1 - OPEN :], made]

    def add(self, place: Place, step: Step) -> Added | None:
        """Add a call to the entry that it continues; None if it continues none.

        That is the entry in the same place of the forward before, else the only possible one.
        """
        (call, q, k, spec, g, _), (called, turn) = step, place
        opened = [x for x in self._open.get(called, []) if x.rows.last.may_join(spec.how, g)]
        if not opened or not isinstance(q, Tensor) or not isinstance(k, Tensor) or 0 in k.shape:
            return None
        keys, new, own = k, k[..., k.shape[-2] - g.t :, :], g.t
        joins = lambda x: x.rows.continued_by(keys, own)  # noqa: E731
        found = _chosen(opened, turn, joins) if k.shape[-2] > g.t else None
        if found is not None:
            cropped = found[1].columns is not None
            self._path = Path(self._path.number + 1, found[1].maybe, cropped=cropped)
        else:
            if self._beams(k) == g.t > 1 and spec.how.bias is None:
                call, how, g = one_by_one(call, spec.get(), g)
                q, k, spec = operand(call.q), operand(call.k), self._store.how(how)
            if g.t == 1:
                found, new = _chosen(opened, turn, lambda x: self._same_keys(x, k)), None
        if found is None:
            self._say_apart(opened[-1], k, g)
            return None
        last, link = found
        rows, last.turn = last.rows, turn
        if link.columns is not None:
            self._covered.note(CROPPED)
        rows.add(q, new, spec, g, link)
        last.entry.steps += 1
        last.path = self._path.number

        def matrix() -> Weights:
            shown = rows.shown()
            return spec.get().attend(q.to(shown.dtype), shown)

        return last.entry, call, matrix

    def _same_keys(self, last: Opened, k: Tensor) -> Link | None:
        """How a single query continues earlier ones that saw the same keys: those of an encoder.

        If self-attention ran meanwhile, its rows tell which row continues which; if there is none
        (recurrent decoders), the keys have to be the same tensor. Nothing tells whether calls that
        no module makes belong together: they stay apart.
        """
        path, n = self._path, last.rows.b
        if path.cropped or (not self._running and last.entry.name == OUTSIDE):
            return None
        if path.number == last.path:
            same = last.key == identity(k) and not last.alive.expired()
            return Link(0, torch.eye(len(k), dtype=torch.bool, device=k.device)) if same else None
        maybe = path.maybe
        if path.index is not None:
            maybe = path.index.to(k.device)[:, None] == torch.arange(n, device=k.device)
        return None if maybe is None else last.rows.shown_again(k, _as_rows(maybe, len(k), n))

    def _say_apart(self, last: Opened, k: Tensor, g: Geometry) -> None:
        """Note why a call that looks like a step does not continue the last one."""
        rows, name = last.rows, last.entry.name
        every = torch.ones(len(k), rows.b, dtype=torch.bool, device=k.device)
        step = g.t == 1 or self._path.maybe is not None  # drafts are several queries at a time
        if step and rows.shown_again(k, every):
            self._covered.note(APART.format(name))
        elif g.t < g.s != rows.columns and rows.begins_like(k):
            self._covered.note(OTHER_KEYS.format(name))

    def _beams(self, k: Tensor) -> int:
        """How many rows (beams) of a decoder of ours share a row of the encoder's keys."""
        inner = pairwise(self._running)
        ours = any(isinstance(x, DecoderLayer) and x.cross_attention is y for x, y in inner)
        rows = self._path.maybe if self._path.index is None else self._path.index
        return 1 if not ours else 0 if rows is None else len(rows) // len(k)


def _as_rows(maybe: Tensor, n: int, rows: int) -> Tensor:
    """The possible rows (n, rows), where one of two attentions has its heads among the rows.

    Hand-written attention often multiplies (b · h, t, d), heads one after the other.
    """
    here, before = maybe.shape
    if (heads := here // n) > 1 and maybe.shape == (n * heads, rows * heads):
        return maybe.view(n, heads, rows, heads).diagonal(dim1=1, dim2=3).all(-1)
    if (heads := n // here) > 1 and (n, rows) == (here * heads, before * heads):
        return torch.kron(maybe.int(), torch.eye(heads, device=maybe.device)).bool()
    return maybe


def _chosen(
    opened: Sequence[Opened], turn: int, link: Callable[[Opened], Link | None]
) -> tuple[Opened, Link] | None:
    """The entry that a call in this turn continues, and how."""
    for here in (True, False):
        some = [x for x in opened if (x.turn == turn) == here]
        found = [(x, made) for x in some if (made := link(x)) is not None]
        if found:
            return found[0] if len(found) == 1 else None
    return None
