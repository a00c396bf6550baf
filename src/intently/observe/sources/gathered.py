"""Attention whose scores are gathered in blocks, as one matrix over the positions of the text.

BigBird, Longformer, LED, PEGASUS-X and local attention written by hand multiply blocks of queries
with blocks of keys and join the scores, so that columns of a softmax are places in a block. While
such a module runs, `Origins` notes what becomes of each score. When the module ends, it says which
query and which key each belongs to; the rows of its softmaxes are laid out by these positions, and
so are the queries and keys of its products: one call. Layers that do the same to the same shapes
are laid out once. Calls of its pieces are held back until then, and told if the pieces are no
blocks, or do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from intently.observe.sources.block_rows import Piece, Product, Softmax, piece_of, plain
from intently.observe.sources.joined_blocks import planned
from intently.observe.sources.laid_blocks import Plan, Unfit
from intently.observe.sources.origins import BITS, Memory, Origins, View, replaced
from intently.observe.watching.call import Call
from intently.observe.watching.inputs import storage_of
from intently.observe.watching.listener import Changing, Listener
from intently.observe.watching.scope import current, inside, tell

COUNT = (1 << BITS) - 1
"""The bits of a place that count entries."""
PRODUCTS = {"bmm": 0, "mm": 0, "baddbmm": 1}
"""Products, and which of their arguments is the left factor."""
LOWEST = -5e3
"""Scores below this, or so far below the highest of their row, are hidden."""

KEPT = 4
"""Kinds of layers that are known at once, and ways in which each hides scores."""
OPERATIONS = 2**12
"""Operations that are known at once."""

Outcome: TypeAlias = "list[Plan] | Unfit"


@dataclass
class Known:
    """What one watch knows of layers that are alike: memories, and how to join their pieces.

    Pieces that are alike may differ in the scores that are hidden.
    """

    memories: dict[Any, Memory] = field(default_factory=dict)
    outcomes: dict[Any, list[tuple[list[Tensor], Outcome]]] = field(default_factory=dict)


_known: WeakKeyDictionary[Listener, Known] = WeakKeyDictionary()


class Gathered:
    """What a module does between its first operation and its last.

    ``held`` are the calls of its pieces, by what their weights are made of.
    """

    def __init__(self, module: nn.Module, listeners: Sequence[Listener]) -> None:
        self.module = module
        self._layers = _known.setdefault(listeners[-1], Known())
        if len(self._layers.memories) > OPERATIONS:
            self._layers = _known[listeners[-1]] = Known()
        self._origins = Origins(self._layers.memories)
        self._products: dict[int, Product] = {}
        self._softmaxes: dict[int, Softmax] = {}
        self._mixed: dict[int, tuple[View, int, int]] = {}
        """By the number of a product with values: its weights, their softmax, and its width."""
        self._held: list[tuple[frozenset[int], Call | str, Tensor | None]] = []
        self._failed = False

    def saw(self, name: str, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Follow one operation; if that fails, the pieces are told as they are."""
        if self._failed:
            return
        try:
            if name in PRODUCTS:
                a, b = args[PRODUCTS[name] :][:2]
                self._product(a, b, result)
            elif name in ("_softmax", "_safe_softmax"):
                self._softmax(args[0], args[1], result)
            else:
                self._origins.saw(name, func, args, kwargs, result)
        except Exception:  # whatever a model does
            self._failed = True
            self._products.clear()
            self._softmaxes.clear()

    def _product(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        if 0 in (*a.shape, *b.shape):
            return
        rows, cols = self._origins.view(a.select(-1, 0)), self._origins.view(b.select(-2, 0))
        for side in (rows, cols):
            number = max(side.memory.numbers, default=0)
            if number in self._softmaxes:
                self._softmaxes[number].met = True
                if side is rows and out.is_contiguous():
                    weights = self._origins.view(a).kept()
                    self._mixed[self._origins.begin(out)] = weights, number, out.shape[-1]
                return
        if not rows.memory.numbers or not out.is_contiguous():  # constants times a mask
            return
        q, k = a.detach(), b.detach().mT
        if q.ndim == 2:
            q, k = q[None], k[None]
        self._products[self._origins.begin(out)] = Product(q, k, rows.kept(), cols.kept())

    def _softmax(self, scores: Tensor, axis: int, weights: Tensor) -> None:
        cells = self._origins.view(scores.movedim(axis, -1))
        number = self._origins.begin(weights)
        if not cells.memory.numbers & self._products.keys() or not weights.is_contiguous():
            return
        if axis % weights.ndim != weights.ndim - 1:
            return
        z = scores.detach()
        top = z.amax(-1, keepdim=True)
        hidden = z <= torch.where(top <= LOWEST, torch.inf, top + LOWEST)
        self._softmaxes[number] = Softmax(cells.kept(), weights.detach().clone(), hidden)

    def plain(self, weights: Tensor) -> bool:
        """Whether weights are of a single product whose queries and keys were not laid out anew."""
        softmax = self._of(weights)
        if softmax is None or not plain(softmax, self._products):
            return False
        return self._laid_by(softmax) is None

    def _of(self, weights: Tensor) -> Softmax | None:
        numbers = self._numbers(weights)
        return self._softmaxes.get(max(numbers)) if len(numbers) == 1 else None

    def _numbers(self, weights: Tensor) -> frozenset[int]:
        """What weights are made of, if that was followed."""
        if self._failed or storage_of(weights) is None:
            return frozenset()
        return self._origins.view(weights).memory.numbers

    def _laid_by(self, softmax: Softmax) -> str | None:
        """The operation that laid out the scores, queries or keys of a softmax."""
        numbers = set(softmax.cells.memory.numbers)
        for product in (self._products[n] for n in numbers & self._products.keys()):
            numbers |= product.rows.memory.numbers | product.cols.memory.numbers
        return next(
            (self._origins.laid[n] for n in sorted(numbers & self._origins.laid.keys())), None
        )

    def hold(self, weights: Tensor, make: Callable[[], Call | str]) -> None:
        """Hold back a call of weights, with its output and its weights as they are now."""
        output: Tensor | None = None
        try:
            with torch._C.DisableTorchFunction(), inside(), torch.no_grad():
                call = make()
        except Exception as error:  # whatever a model hands to its attention
            call = f"{type(error).__name__}: {error}"
        if isinstance(call, Call):
            if isinstance(call.y, Tensor):
                output, call.y = call.y, call.y.clone()
            if isinstance(call.real, Tensor):
                call.real = call.real.clone()
            softmax = self._of(weights)
            call.shut = None if softmax is None else self._laid_by(softmax)
        self._held.append((self._numbers(weights), call, output))

    def tell(self, result: Any) -> None:
        """Tell the calls of the module: one for blocks that share keys, and those held back.

        The module has ended: it has used an output that is not in its ``result``.
        """
        whole: list[tuple[set[int], Call]] = []
        listeners = current()
        if result is None:  # it raised, so that there is nothing to edit
            listeners = tuple(x for x in listeners if not isinstance(x, Changing))
        with torch._C.DisableTorchFunction(), inside(), torch.no_grad():
            try:
                whole = self._joined()
            except Exception as error:  # whatever a model gathers
                why = str(error) if isinstance(error, Unfit) else f"{type(error).__name__}: {error}"
                for listener in listeners:
                    listener.apart(self.module, why)
        known = set[int]().union(*(numbers for numbers, _ in whole))
        calls: list[Call | str] = [call for _, call in whole]
        tensors = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        given = {_memory(x) for x in tensors} - {None}
        for numbers, call, output in self._held:
            if max(numbers, default=0) not in known:
                if output is None or _memory(output) not in given:
                    _leave(call)
                calls.append(call)
        for call in calls:
            tell(listeners, "by hand", self.module, partial(_made, call))

    def _joined(self) -> list[tuple[set[int], Call]]:
        """The calls of pieces that share keys, and the numbers of the pieces."""
        met = {n: seen for n, seen in self._softmaxes.items() if seen.met}
        if not met:
            return []
        products = self._products
        used = {n for seen in met.values() for n in seen.cells.memory.numbers} & products.keys()
        mixed = frozenset(self._mixed)
        writes = [
            x
            for x in self._origins.writes
            if x.before is not None and x.before.numbers & mixed and x.numbers & mixed
        ]
        for write in writes:
            write.users += 1
            assert write.before is not None
            write.before.users += 1
        key = (
            tuple((n, seen.cells) for n, seen in met.items()),
            tuple((n, products[n].rows, products[n].cols) for n in sorted(used)),
            tuple(writes),
            tuple(self._mixed.items()) if writes else (),
        )
        hidden = [seen.hidden for seen in met.values()]
        alike = self._layers.outcomes.setdefault(key, [])
        outcome = next((x for held, x in alike if all(map(torch.equal, held, hidden))), None)
        if outcome is None:
            try:
                held, outcome = self._outcome(met, used, hidden, writes)
            finally:
                self._origins.forget()
            if held is not None:
                alike.append((held, outcome))
            del alike[:-KEPT]
            for old in list(self._layers.outcomes)[:-KEPT]:
                del self._layers.outcomes[old]
        if isinstance(outcome, Unfit):
            raise outcome
        weights = {n: seen.weights for n, seen in met.items()}
        return [(plan.numbers, plan.call(weights, self._products)) for plan in outcome]

    def _outcome(
        self, met: dict[int, Softmax], used: set[int], hidden: list[Tensor], writes: list[Memory]
    ) -> tuple[list[Tensor] | None, Outcome]:
        """How the pieces are joined, and the hidden scores for which that holds, if any."""
        if all(plain(seen, self._products) for seen in met.values()):
            return [], []
        sides = {n: self._products[n].sides(n) for n in used}
        found = {n: piece_of(n, softmax, sides) for n, softmax in met.items()}
        pieces = {n: piece for n, piece in found.items() if piece is not None}
        sure = len(pieces) == len(met) and all(piece.sure for piece in pieces.values())
        try:
            outcome = planned(pieces, self._replaced(writes, pieces)) if pieces else []
        except Unfit as unfit:
            outcome = unfit
        return (hidden if sure else None), outcome

    def _replaced(self, writes: Sequence[Memory], pieces: dict[int, Piece]) -> Tensor:
        """Queries (2, n) whose result was overwritten, and those whose result it was."""
        found = [torch.empty(2, 0, dtype=torch.int64)]
        mixed = {n: x for n, x in self._mixed.items() if x[1] in pieces}
        for pair in map(replaced, writes):
            numbers = [x >> BITS for x in pair]
            for old, new in torch.stack(numbers, -1).unique(dim=0).tolist():
                if old in mixed and new in mixed:
                    here = (numbers[0] == old) & (numbers[1] == new)
                    rows = []
                    for number, x in zip((old, new), pair):
                        weights, piece, width = mixed[number]
                        at = (weights.places().amax(-1) & COUNT).flatten()
                        row = pieces[piece].rows.flatten()[at // pieces[piece].cols.shape[-1]]
                        rows.append(row[(x[here] & COUNT) // width])
                    found.append(torch.stack(rows).unique(dim=1).cpu())
        return torch.cat(found, 1)


def _memory(x: Tensor) -> int | None:
    storage = storage_of(x)
    return None if storage is None else storage._cdata


def _leave(call: Call | str) -> None:
    """Leave no place to put another output."""
    if isinstance(call, Call):
        call.put = None


def _made(call: Call | str) -> Call | str:
    return call
