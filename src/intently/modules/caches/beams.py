"""Masks over queries side by side: m rows of x that share a row of the states."""

from __future__ import annotations

import torch
from torch import Tensor

from intently.errors import ArgumentError, build
from intently.masks import Geometry, Mask, allowed
from intently.masks.mask import OverMask
from intently.masks.queries import unless_all


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
    of x: it is written out then, b · t · s booleans. Raises `ArgumentError` where it has neither.
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
