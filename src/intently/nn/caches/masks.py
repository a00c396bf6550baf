"""Masks and biases over cached keys, some of which may have been dropped; masks of beams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from intently.core.biases import Bias
from intently.core.masks import Geometry, Mask, allowed
from intently.core.masks.block_states import unless_all
from intently.core.masks.geometry import Cut, Over, R, cut_left, pick
from intently.core.masks.mask import OverMask
from intently.core.masks.ragged import Padding
from intently.errors import ArgumentError, build
from intently.foundation.values import Value

V = TypeVar("V", bound=Value)


def standing(value: V, offset: Tensor) -> V:
    """Return a mask or bias with ``offset`` (b,) wherever it has no offset of its own.

    >>> import intently as it
    >>> standing(it.causal() & it.window(2, 0), torch.tensor([3, 5]))
    causal(offset=[3, 5]) & window(2, 0, offset=[3, 5])
    """
    if getattr(value, "offset", 0) is None:  # the last part of every value with an offset
        return type(value)(*value.parts[:-1], offset)
    parts = [standing(part, offset) if isinstance(part, Value) else part for part in value.parts]
    return type(value)(*parts)


def at_places(cols: Tensor, sinks: int, gap: int | Tensor) -> Tensor:
    """Return positions of columns in the whole text; columns from ``sinks`` on follow the gap.

    >>> at_places(torch.arange(3), 1, torch.tensor([[4], [1]]))
    tensor([[0, 5, 6],
            [0, 2, 3]])
    """
    return cols + gap * (cols >= sinks)


class Written(Padding):
    """The first ``lengths`` (b,) keys, where a cache holds zeros after them.

    This is `padding` over zeros, which kernels need not clear.
    """

    def seen(self, g: Geometry) -> None:
        """Nothing needs to be cleared."""


class _OverKept(Over[R]):
    """A mask or bias of the whole text, over its first ``sinks`` keys and those after a ``gap``.

    ``gap`` is an int, or a tensor (b,) if every row has kept different keys, of a text of
    ``steps``. The rule is evaluated once, at all positions that any row has kept; each row selects
    its own::

        row 0 of a window of 2, 1 sink, after 7 steps   0 5 6      asked for   0 2 3 5 6
        row 1, after 4                                  0 2 3
    """

    def __init__(self, inner: R, sinks: int, gap: int | Tensor, *steps: int) -> None:
        super().__init__(inner, sinks, gap, *steps)
        self.sinks, self.gap, self.steps = sinks, gap, steps

    def whole(self, g: Geometry) -> Geometry:
        return g._replace(s=self.steps[0] if isinstance(self.gap, Tensor) else g.s + self.gap)

    def part(self, cut: Cut, g: Geometry) -> Any:
        gap = cut_left(self.gap, cut) if isinstance(self.gap, Tensor) else self.gap
        return type(self)(self.inner.part(cut, self.whole(g)), self.sinks, gap, *self.steps)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        gap = pick(g, self.gap, lead[: self.gap.ndim]) if isinstance(self.gap, Tensor) else self.gap
        return self.inner.at(self.whole(g), lead, i, self._places(j, gap))

    def block(self, g: Geometry, cols: Tensor, ask: Callable[[Tensor], Tensor]) -> Tensor:
        """Return (…, t, n) for columns (n,); ``ask`` evaluates keys of the whole text."""
        if not isinstance(self.gap, Tensor) or not self.gap.ndim:
            return ask(self._places(cols, self.gap))
        places = self._places(cols, self.gap[:, None])
        asked, index = torch.unique(places, return_inverse=True)
        block = ask(asked)
        block = block.reshape(*(1,) * (len(g.lead) + 2 - block.ndim), *block.shape)
        block = block.expand(len(places), *block.shape[1:-1], len(asked))
        index = index.view(len(places), *(1,) * (block.ndim - 2), len(cols))
        return block.gather(-1, index.expand(*block.shape[:-1], len(cols)))

    def _places(self, cols: Tensor, gap: int | Tensor) -> Tensor:
        places = at_places(cols, self.sinks, gap)
        return places.clamp(0, self.steps[0] - 1) if isinstance(self.gap, Tensor) else places

    def __repr__(self) -> str:
        if isinstance(self.gap, Tensor):
            return f"({self.inner!r}) over the keys that each row kept"
        return f"({self.inner!r}) without keys {self.sinks} … {self.sinks + self.gap - 1}"


class KeptMask(_OverKept[Mask], OverMask):
    """A mask of the whole text, restricted to the keys in a cache.

    ::

        causal(), sinks=1, gap=2, t=1, s=3   █ █ █      of   █ · · █ █

    >>> import intently as it
    >>> print(KeptMask(it.causal(offset=3), 1, torch.tensor([2]), 5).draw(1, 3))
    █ █ ·
    """

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        whole = self.whole(g)
        return self.block(g, cols, lambda places: self.inner.allow(whole, rows, places))

    def lead(self) -> tuple[int, ...]:
        own = tuple(self.gap.shape) if isinstance(self.gap, Tensor) else ()
        return max(self.inner.lead(), own, key=len)


class KeptBias(_OverKept[Bias], Bias):
    """A bias of the whole text, restricted to the keys in a cache."""

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        whole = self.whole(g)
        return self.block(g, cols, lambda places: self.inner.tile(whole, rows, places, dtype))


class SideBySide(OverMask):
    """A mask of t queries for each of ``beams`` runs of t queries, one behind the other.

    >>> from intently import causal
    >>> print(SideBySide(causal(), 2).draw(4, 2))
    █ ·
    █ █
    █ ·
    █ █
    """

    def __init__(self, inner: Mask, beams: int) -> None:
        super().__init__(inner, beams)
        self.beams = beams

    def whole(self, g: Geometry) -> Geometry:
        return g._replace(t=g.t // self.beams)

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        one = self.whole(g)
        return self.inner.allow(one, rows % max(1, one.t), cols)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        one = self.whole(g)
        return self.inner.at(one, lead, i % max(1, one.t), j)

    def seen(self, g: Geometry) -> Tensor | None:
        seen = self.inner.seen(self.whole(g))
        return None if seen is None else unless_all(seen)

    def __repr__(self) -> str:
        return f"{self.beams} × ({self.inner!r})"


def side_by_side(mask: Mask, beams: int, g: Geometry) -> Mask:
    """Return a mask for ``g`` (n, h, t, s) where the queries of ``beams`` rows lie side by side.

    The mask has a row for each of the n rows of the states, or for each of the b = n · beams rows
    of x: then it is materialised, b · t · s booleans. Raises `ArgumentError` otherwise.
    """
    if beams == 1:
        mask.check(g)
        return mask
    cause = _misfit(mask, g)
    if cause is None:
        return mask if mask.per_key else SideBySide(mask, beams)
    b = g.lead[0] * beams
    each = g._replace(lead=(b, *g.lead[1:]))
    if _misfit(mask, each):
        raise build(
            ArgumentError,
            "states_mask",
            f"a mask over (n, h, t, s) = {g.shape} or (b, h, t, s) = {each.shape}",
            repr(mask),
            cause,
        )
    found = mask.dense(each) & torch.ones(b, 1, g.t, 1, dtype=torch.bool, device=g.device)
    return allowed(found.unflatten(0, (-1, beams)).movedim(1, 2).flatten(2, 3))


def _misfit(mask: Mask, g: Geometry) -> str | None:
    try:
        mask.check(g)
    except ArgumentError as error:
        return str(error)
    return None
