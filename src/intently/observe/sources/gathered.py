"""Attention whose scores are gathered in blocks, as one matrix over the positions of the text.

BigBird, Longformer, LED, PEGASUS-X and local attention written by hand multiply blocks of queries
with blocks of keys and join the scores, so that columns of a softmax are places in a block. While
such a module runs, `Origins` says of each score which query and which key it belongs to. When the
module ends, the rows of its softmaxes are laid out by these positions, and so are the queries and
keys of its products: one call. Calls of its pieces are held back until then, and told if the pieces
are no blocks, or do not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from intently.observe.sources.joined_blocks import Piece, Product, Unfit, joined
from intently.observe.sources.origins import BITS, NOWHERE, Origins
from intently.observe.watching.call import Call
from intently.observe.watching.scope import current, inside, tell

COUNT = (1 << BITS) - 1
"""The bits of a place that count entries."""
PRODUCTS = {"bmm": 0, "mm": 0, "baddbmm": 1}
"""Products, and which of their arguments is the left factor."""
LOWEST = -5e3
"""Scores below this, or so far below the highest of their row, are hidden."""


@dataclass
class Gathered:
    """What a module does between its first operation and its last.

    ``held`` are the calls of its pieces, by the number of their weights.
    """

    module: nn.Module
    origins: Origins = field(default_factory=Origins)
    products: dict[int, Product] = field(default_factory=dict)
    pieces: dict[int, Piece] = field(default_factory=dict)
    held: list[tuple[int, Call | str]] = field(default_factory=list)
    why: str | None = None
    mixed: dict[int, tuple[Tensor, int]] = field(default_factory=dict)
    """By the number of a product with values: the queries of its rows, and its width."""

    def saw(self, name: str, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Follow one operation; if that fails, the pieces are told as they are."""
        if self.why is not None:
            return
        try:
            if name in PRODUCTS:
                a, b = args[PRODUCTS[name] :][:2]
                self._product(a, b, result)
            elif name in ("_softmax", "_safe_softmax"):
                self._softmax(args[0], args[1], result)
            else:
                self.origins.saw(name, func, args, kwargs, result)
        except Exception as error:  # whatever a model does
            self.why = f"{type(error).__name__} in aten.{name}: {error}"
            self.products.clear()
            self.pieces.clear()

    def _product(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        if 0 in (*a.shape, *b.shape):
            return
        rows, cols = self.origins.of(a.select(-1, 0)), self.origins.of(b.select(-2, 0))
        for side in (rows, cols):
            piece = self.pieces.get(int(side.amax()) >> BITS)
            if piece is not None:
                piece.met = True
                if side is rows and out.is_contiguous():
                    weights = self.origins.of(a).amax(-1) & COUNT
                    row = piece.rows.flatten()[weights.flatten() // piece.cols.shape[-1]]
                    self.mixed[self.origins.begin(out)] = row, out.shape[-1]
                return
        if bool((rows == NOWHERE).all()) or not out.is_contiguous():  # constants times a mask
            return
        q, k = a.detach(), b.detach().mT
        if q.ndim == 2:
            q, k, rows, cols = q[None], k[None], rows[None], cols[None]
        self.products[self.origins.begin(out)] = Product(q, k, rows.clone(), cols.clone())

    def _softmax(self, scores: Tensor, axis: int, weights: Tensor) -> None:
        cells = self.origins.of(scores).movedim(axis, -1)
        numbers = set((cells >> BITS).flatten().add_(1).bincount()[1:].nonzero().flatten().tolist())
        number = self.origins.begin(weights)
        if not numbers or not numbers <= self.products.keys() or not weights.is_contiguous():
            return
        if axis % weights.ndim != weights.ndim - 1:
            return
        found = {n: self.products[n] for n in sorted(numbers)}
        z = scores.detach().movedim(axis, -1)
        top = z.amax(-1, keepdim=True)
        hidden = (z <= top + LOWEST) | (top <= LOWEST)
        ran = weights.detach().movedim(axis, -1).clone()
        rows, cols = _rows_and_keys(cells, found)
        row = rows.masked_fill(hidden, NOWHERE).amax(-1)
        if bool(((rows != row[..., None]) & (rows != NOWHERE) & ~hidden).any()):
            return  # scores of several queries in one softmax
        empty = hidden.all(-1)
        row[empty] = _most(rows[empty])
        nobody = (row == NOWHERE)[..., None]
        if bool(((cols == NOWHERE) & ~hidden & ~nobody & (ran > 0)).any()):
            return  # padding is attended
        cols.masked_fill_(hidden, NOWHERE)
        whole = len(found) == 1 and cells.numel() == sum(
            x.rows.numel() * x.cols.shape[-1] for x in found.values()
        )
        self.pieces[number] = Piece(ran, row, cols, list(found.values()), whole)

    def _replaced(self) -> Tensor:
        """Queries (2, n) whose result was overwritten, and those whose result it was."""
        found = [torch.empty(2, 0, dtype=torch.int64)]
        for pair in self.origins.replaced:
            numbers = [x >> BITS for x in pair]
            for old, new in torch.stack(numbers, -1).unique(dim=0).tolist():
                if old in self.mixed and new in self.mixed:
                    here = (numbers[0] == old) & (numbers[1] == new)
                    rows = []
                    for number, x in zip((old, new), pair):
                        row, width = self.mixed[number]
                        rows.append(row[(x[here] & COUNT) // width])
                    found.append(torch.stack(rows).unique(dim=1).cpu())
        return torch.cat(found, 1)

    def hold(self, weights: Tensor, make: Callable[[], Call | str]) -> None:
        """Hold back a call of weights, with its output and its weights as they are now."""
        try:
            with torch._C.DisableTorchFunction(), inside(), torch.no_grad():
                call = make()
        except Exception as error:  # whatever a model hands to its attention
            call = f"{type(error).__name__}: {error}"
        if isinstance(call, Call):
            if isinstance(call.y, Tensor):
                call.y = call.y.clone()
            if isinstance(call.real, Tensor):
                call.real = call.real.clone()
        self.held.append((int(self.origins.of(weights).amax()) >> BITS, call))

    def tell(self) -> None:
        """Tell the calls of the module: one for blocks that share keys, and those held back."""
        whole: list[tuple[set[int], Call]] = []
        recorders = current()
        with torch._C.DisableTorchFunction(), inside(), torch.no_grad():
            try:
                met = {n: piece for n, piece in self.pieces.items() if piece.met}
                whole = joined(met, self._replaced()) if met else []
            except Exception as error:  # whatever a model gathers
                why = str(error) if isinstance(error, Unfit) else f"{type(error).__name__}: {error}"
                for recorder in recorders:
                    recorder.apart(self.module, why)
        known = set[int]().union(*(numbers for numbers, _ in whole))
        calls = [call for _, call in whole] + [call for n, call in self.held if n not in known]
        for call in calls:
            tell(recorders, "by hand", self.module, partial(_made, call))


def _made(call: Call | str) -> Call | str:
    return call


def _most(rows: Tensor) -> Tensor:
    """The place that comes most often in each row (n, m), where some hidden scores are others'."""
    return torch.where(rows == NOWHERE, rows.amax(-1, keepdim=True), rows).mode(-1).values


def _rows_and_keys(cells: Tensor, products: dict[int, Product]) -> tuple[Tensor, Tensor]:
    """The places of the queries and the keys of scores whose places are ``cells``."""
    rows, cols = torch.full_like(cells, NOWHERE), torch.full_like(cells, NOWHERE)
    numbers = cells >> BITS
    for number, product in products.items():
        n, m = product.rows.shape[-1], product.cols.shape[-1]
        here = numbers == number
        at = cells[here] & COUNT
        row = at // m
        rows[here] = product.rows.flatten()[row]
        cols[here] = product.cols.flatten()[row // n * m + at % m]
    return rows, cols
