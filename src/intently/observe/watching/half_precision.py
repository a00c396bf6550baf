"""The comparison of a call in half precision, where rounding has to be told from other weights.

The error of each entry has a standard deviation that follows from the dtype, the logits, the
weights and the values. Weights are right if every error is within `LIMIT` of it and all together
within one, and if the output tells them from their near misses: of the way from these weights to
those of a near miss, the output may have gone less than half, rounding allowed for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from intently.observe.watching.near_misses import Logits

LIMIT = 3.0
"""Standard deviations."""
ALIKE = 3.0
"""Roundings that move all weights of a row alike: of equal weights, of their sum, of a quotient."""
SLACK = 1e-5
"""What sums in float32 may add to an entry, of the largest."""


@dataclass(frozen=True)
class Rounding:
    """What rounding to ``dtype`` does to weights (…, n, s): each z moves them by ``moved``."""

    weights: Tensor
    moved: Tensor
    dtype: torch.dtype

    @staticmethod
    def of(weights: Tensor, logits: Logits, dtype: torch.dtype, scores: bool) -> Rounding:
        """The rounding of fused kernels, or of code that rounds its ``scores``, too."""
        eps = torch.finfo(dtype).eps
        weights = weights.nan_to_num(0)
        moved = torch.zeros_like(weights)
        if scores:
            moved = (weights * logits.rounded(eps).expm1()).nan_to_num(0).clamp_max(1)
        return Rounding(weights, moved, dtype)

    @property
    def unit(self) -> float:
        """The standard deviation of a rounded number, relative to it: errors are uniform."""
        return torch.finfo(self.dtype).eps / 12**0.5

    def of_weights(self) -> Tensor:
        """The variance of weights that are rounded as exponentials, and as quotients."""
        w = self.weights
        return 2 * torch.where(w > 0, self.unit * (w + torch.finfo(self.dtype).tiny), 0).square()


class Product:
    """What came out is weights @ v, or the weights themselves if there is no v (…, g, s, e)."""

    def __init__(self, v: Tensor | None) -> None:
        self.v = v

    def __call__(self, weights: Tensor) -> Tensor:
        return weights if self.v is None else times(weights, self.v)

    def variance(self, by: Rounding, y: Tensor) -> Tensor:
        """The variance (…, n, e) of what came out, y without rounding.

        Scores that move by δ move y by w δ (v − y).
        """
        known = Product(None if self.v is None else self.v.nan_to_num(0, 0, 0))
        squares = Product(None if known.v is None else known.v.square())
        y, moved = y.nan_to_num(0, 0, 0), by.moved.square()
        spread = squares(moved) - 2 * y * known(moved) + y.square() * moved.sum(-1, keepdim=True)
        return spread.clamp_min(0) + squares(by.of_weights()) + (1 + ALIKE) * (by.unit * y).square()

    def along(self, p: Tensor, by: Rounding, y: Tensor) -> Tensor:
        """The variance (…, n) of Σ p · error: errors of one row depend on each other."""
        keys = p if self.v is None else times(p, self.v.nan_to_num(0, 0, 0).mT)
        y = y.nan_to_num(0, 0, 0)
        total = (p * y).sum(-1, keepdim=True)
        moved = (by.moved * (keys - total)).square() + by.of_weights() * keys.square()
        own = (p * y).square().sum(-1) + ALIKE * total[..., 0].square()
        return moved.sum(-1) + by.unit**2 * own


class Finished:
    """What came out is the output of an operator that goes on from weights @ v."""

    def __init__(self, v: Tensor, finish: Callable[[Tensor], Tensor]) -> None:
        self.product, self.finish = Product(v), finish

    def __call__(self, weights: Tensor) -> Tensor:
        return self.finish(self.product(weights))

    def variance(self, by: Rounding, y: Tensor) -> Tensor:
        """The variance: what random errors of the product do to the output, and its own."""
        mixed = self.product(by.weights)
        error = self.product.variance(by, mixed).sqrt()
        pushed = self.finish(mixed + error * _signs(mixed)) - y
        own = 2 * by.unit * y.abs().amax((-2, -1), keepdim=True)
        return own.square() + pushed.square().mean(-1, keepdim=True)

    def along(self, p: Tensor, by: Rounding, y: Tensor) -> Tensor:
        """The variance of Σ p · error at most."""
        return (p.abs() * self.variance(by, y).sqrt()).sum(-1).square()


@dataclass(frozen=True)
class Outcome:
    """Whether what came out fits, is far from fitting, and which near misses it cannot exclude."""

    fits: bool
    far: bool
    untold: tuple[str, ...] = ()


def compare(
    made: Product | Finished,
    weights: Tensor,
    real: Tensor,
    empty: Tensor,
    logits: Logits,
    dtype: torch.dtype,
    few: bool,
) -> Outcome:
    """Compare ``made(weights)`` with the ``real`` (…, n, e) in ``dtype``, but for ``empty`` rows.

    A near miss whose weights are the same but for rounding need not be excluded, unless there are
    only a ``few`` rows, in which it may not show.
    """
    y = made(weights)
    error = real - y
    error = error.masked_fill(empty | (real == y) | (real.isnan() & y.isnan()), 0)
    shown = (~empty.expand_as(error)).sum().clamp_min(1)
    untold: tuple[str, ...] | None = None
    seen = logits.open.any(-1)
    slack = (SLACK * y.nan_to_num(0, 0, 0).abs().amax((-2, -1), keepdim=True)).square() + 1e-30
    for scores in (False, True):
        by = Rounding.of(weights, logits, dtype, scores)
        variance = made.variance(by, y) + slack
        size = torch.where(error == 0, 0, error.square() / variance)
        if not bool((size <= LIMIT**2).all()) or not bool(size.sum() <= shown):
            continue
        untold = tuple(
            dict.fromkeys(
                name
                for name, other in logits.near_misses()
                if not _told(made, other.weights(), by, y, error, variance, empty, seen, few)
            )
        )
        if not untold:
            break
    if untold is not None:
        return Outcome(True, False, untold)
    return Outcome(False, not bool((size <= (2 * LIMIT) ** 2).all()))


def _told(
    made: Product | Finished,
    other: Tensor,
    by: Rounding,
    y: Tensor,
    error: Tensor,
    variance: Tensor,
    empty: Tensor,
    seen: Tensor,
    few: bool,
) -> bool:
    """Whether what came out tells weights from ``other`` ones, or nothing could.

    ``empty`` are the rows of y, and ``seen`` (…, n) those of the weights, that are left out or not.
    """
    if not few:
        apart = (other - by.weights).abs().sum(-1) / 2
        hidden = (by.moved * (1 - by.weights)).sum(-1) / 2
        if bool((~seen | (apart <= torch.finfo(by.dtype).eps + hidden)).all()):
            return True
    way = (made(other) - y).masked_fill(empty, 0).nan_to_num(0, 0, 0)
    p = way / variance
    gone, length = (p * error).sum().abs(), (p * way).sum()
    return bool(gone + LIMIT * made.along(p, by, y).sum().sqrt() < length / 2)


def _signs(x: Tensor) -> Tensor:
    """A pattern of ±1 that is independent of x."""
    turns = torch.arange(x.numel(), device=x.device) * 0.6180339887 % 1
    return torch.where(turns < 0.5, -1.0, 1.0).to(x.dtype).view(x.shape)


def times(weights: Tensor, v: Tensor) -> Tensor:
    """Weights (…, h, n, s) @ v (…, g, s, e), consecutive query heads sharing a value head."""
    if weights.ndim >= 4 and v.ndim >= 3 and v.shape[-3] not in (1, weights.shape[-3]):
        g = v.shape[-3]
        grouped = weights.unflatten(-3, (g, -1)).flatten(-3, -2)
        mixed = grouped @ v
        return mixed.unflatten(-2, (-1, weights.shape[-2])).flatten(-4, -3)
    return weights @ v
