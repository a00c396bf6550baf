"""Values that meet exponentials of scores before these are divided by their sum.

The product is followed through sums with other blocks of keys, factors and moves. What comes out of
a division or a factor may be A @ v; when the module ends, it is compared, and the first that agrees
is told. Factors that are constant along the keys, such as a running maximum, need not be followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from intently.observe.sources.followed import Lost, Scores
from intently.observe.sources.steps import NO_PRODUCT
from intently.observe.watching import checking
from intently.observe.watching.call import Call, operand
from intently.observe.watching.revealed import writes_attention
from intently.observe.watching.scope import around, current, tell

BY_HAND = "by hand"
"""The name of this source."""
UNDIVIDED = "exponentials of scores meet values before they are divided by their sum"
MOST, TRIES = 64, 5
"""Products at most that wait for their division, and results of each that are compared."""
_MOVES = ("view", "_unsafe_view", "permute", "transpose", "t", "unsqueeze", "squeeze")
_SUMS = ("add", "sub")
_FACTORS = ("mul", "div")
_SAME = ("clone", "_to_copy", "alias", "detach")


class Part(NamedTuple):
    """Exponentials of one block of keys, or of all, and its values (…, s, e)."""

    scores: Scores | Tensor
    values: Tensor
    side: int


@dataclass(eq=False)
class Fate:
    """What becomes of products with exponentials, in the forward of ``module``."""

    module: nn.Module | None
    why: str | None
    shape: torch.Size
    results: list[tuple[Mixture, Tensor]] = field(default_factory=list)

    def call(self) -> Call | str:
        """The call of the result that agrees, or why there is none."""
        most = max((len(mixture.parts) for mixture, _ in self.results), default=0)
        maybe: Call | None = None
        for mixture, y in self.results:
            if len(mixture.parts) == most:
                call = mixture.call(y)
                with torch.no_grad():
                    agrees = call is not None and checking.check(call, _matrix(call), 0).verified
                if call is not None and agrees:
                    return call
                maybe = maybe or (call if agrees is None else None)
        return maybe or self.why or UNDIVIDED


@dataclass(frozen=True)
class Mixture:
    """A sum of products of exponentials with values, moved since."""

    parts: tuple[Part, ...]
    fate: Fate
    moves: tuple[Callable[[Tensor], Tensor], ...] = ()

    def call(self, y: Tensor) -> Call | None:
        """The call whose output is y, if all parts are blocks of the same queries."""
        side = self.parts[0].side
        back = self._moved_back(y)
        try:
            scores = joined([part.scores for part in self.parts], side, self.fate.why)
            call = placed(scores, torch.cat([part.values for part in self.parts], -2), back, side)
        except (Lost, RuntimeError):
            return None
        return call if isinstance(call, Call) else None

    def _moved_back(self, y: Tensor) -> Tensor:
        """A result with the axes of the product."""
        places = torch.arange(self.fate.shape.numel(), device=y.device).view(self.fate.shape)
        for move in self.moves:
            places = move(places)
        back = torch.empty_like(y).flatten()
        back[places.flatten()] = y.detach().flatten()
        back = back.view(self.fate.shape)
        return back.mT if self.parts[0].side else back


class Mixtures:
    """All products with exponentials of a thread that wait for their division."""

    def __init__(self) -> None:
        self.waiting: list[Fate] = []

    def begun(self, found: Scores | Lost, a: Tensor, b: Tensor, out: Tensor, side: int) -> Mixture:
        """A product of exponentials, the left (0) or the right (1) factor of ``out``."""
        why, scores = found.why, (a, b)[side]
        if isinstance(found, Scores):
            try:
                scores = found.over_keys([-1 - side], "weights")
            except Lost as lost:
                why = lost.why
        fate = Fate(_whose(), why, out.shape)
        self.waiting.append(fate)
        if len(self.waiting) > MOST:
            self._told(self.waiting.pop(0))
        mixture = Mixture((Part(scores, (b, a.mT)[side], side),), fate)
        if why is None:  # a single key needs no division
            fate.results.append((mixture, out))
        return mixture

    def after(
        self, func: Any, name: str, found: Sequence[Mixture], args: Any, kwargs: Any, out: Tensor
    ) -> Mixture | None:
        """The mixture after an operation; None if it ends there."""
        first = found[0]
        if out.numel() != first.fate.shape.numel():
            return None
        if name in _MOVES:
            return replace(first, moves=(*first.moves, partial(_move, func, args[1:], kwargs)))
        if name in _SUMS:
            for other in found[1:]:
                first = self._added(first, other)
        elif name in _FACTORS:
            results = first.fate.results
            if sum(len(x.parts) == len(first.parts) for x, _ in results) < TRIES:
                results.append((first, out))
        elif name not in _SAME:
            return None
        return first

    def ended(self, module: nn.Module | None) -> None:
        """The forward of a module ended: tell of what it divided."""
        mine = [fate for fate in self.waiting if fate.module is module]
        self.waiting = [fate for fate in self.waiting if fate.module is not module]
        for fate in mine:
            self._told(fate)

    def _told(self, fate: Fate) -> None:
        if fate.results or fate.why != NO_PRODUCT:  # of which many are no scores
            tell(current(), BY_HAND, fate.module, fate.call)

    def _added(self, one: Mixture, other: Mixture) -> Mixture:
        """The sum of two mixtures, whose fate is one from now on."""
        if other.fate is not one.fate and other.fate in self.waiting:
            self.waiting.remove(other.fate)
        parts = (*one.parts, *(x for x in other.parts if not any(x is y for y in one.parts)))
        return replace(one, parts=parts)


def _whose() -> nn.Module | None:
    """The innermost running module that attends or has parts; the outermost if none does."""
    modules = around()
    mine = (m for m in reversed(modules) if m._parameters or m._modules or writes_attention(m))
    return next(mine, modules[0] if modules else None)


def joined(blocks: Sequence[Scores | Tensor], side: int, why: str | None) -> Scores:
    """The weights of blocks of keys together; raises `Lost` if their queries differ."""
    first = blocks[0]
    if isinstance(first, Tensor):
        exponentials = torch.cat([x for x in blocks if isinstance(x, Tensor)], -1 - side)
        weights = exponentials / exponentials.sum(-1 - side, keepdim=True)
        return replace(Scores.given(weights, -1 - side), why=why)
    some = [_without_constants(x) for x in blocks if isinstance(x, Scores)]
    one, *others = some
    if not others:
        return one
    if not all(_continues(one, x) for x in others) or len(some) < len(blocks):
        raise Lost(UNDIVIDED)
    biases = [reduce(add, (x.q.new_zeros(()), *x.biases)) for x in some]
    true = one.q.new_ones((), dtype=torch.bool)
    masks = [reduce(torch.logical_and, (true, *x.masks)) for x in some]
    return replace(
        one,
        k=torch.cat([x.k for x in some], -2),
        biases=(_side_by_side(biases, some),) if any(x.biases for x in some) else (),
        masks=(_side_by_side(masks, some),) if any(x.masks for x in some) else (),
    )


def _without_constants(scores: Scores) -> Scores:
    """Without what is added to all keys of a query alike, which changes no weights."""
    return replace(scores, biases=tuple(x for x in scores.biases if x.shape[-1] > 1))


def _continues(one: Scores, other: Scores) -> bool:
    """Whether the scores are those of the same queries with other keys."""
    split = one.grid[1] or other.grid[1] or isinstance(one.inner, Tensor)
    same = (one.layout, one.inner, one.outer) == (other.layout, other.inner, other.outer)
    return not split and same and torch.equal(one.q, other.q)


def _side_by_side(blocks: Sequence[Tensor], scores: Sequence[Scores]) -> Tensor:
    """Biases or masks of blocks of keys, as those of all keys."""
    whole = [(*x.q.shape[:-1], x.k.shape[-2]) for x in scores]
    return torch.cat([x.expand(shape) for x, shape in zip(blocks, whole)], -1)


def _move(func: Any, more: Any, kwargs: Any, x: Tensor) -> Tensor:
    moved: Tensor = func(x, *more, **kwargs)
    return moved


def _matrix(call: Call) -> Any:
    return call.how.attend(operand(call.q), operand(call.k))


def placed(
    found: Scores, v: Tensor, y: Tensor, side: int, real: Tensor | None = None
) -> Call | str:
    """The call of weights with the values v (…, s, e) and the output y (…, t, e).

    The weights were the left (0) or the right (1) factor of a product, which was transposed then;
    ``real`` are those that ran.
    """
    row, column = found.layout[-2:]
    if any(i in found.rows for held in found.layout[:-2] for i in held):
        found = found.spread()
        if found.why is not None and any(found.rows[0] in held for held in found.layout[:-2]):
            found = found.pooled()
        row, column = found.layout[-2:]
    lead, sizes, n = found.layout[:-2], found.axes, found.rows[0]
    ones = tuple(i for i in (*row, *column) if i < n and sizes[i] == 1)
    last = [tuple(i for i in held if i not in ones) for held in (row, column)]
    rows, keys = last if side == 0 else reversed(last)
    own = len(found.rows)
    if keys != found.keys or rows[-own:] != found.rows:
        return "the weights are summed over another axis than the keys"
    shared = rows[:-own]
    order = [*ones, *(i for held in lead for i in held), *shared]  # several rows share values
    q, k, how = found.operands(order)
    outer = [sizes[i] for i in order]
    y = y.reshape(*outer, q.shape[-2], y.shape[-1])
    v = v.reshape(*outer[: len(outer) - len(shared)], *(1,) * len(shared), *v.shape[-2:])
    if real is not None:
        real = real.reshape(*outer, q.shape[-2], v.shape[-2])
    return Call(q, k, v, y, how, BY_HAND, None, found.columns, found.why, real=real)
