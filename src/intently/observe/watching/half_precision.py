"""The comparison of a call in half precision, where rounding has to be told from other weights.

The error of each entry has a standard deviation that follows from the dtype, the logits, the
weights and the values. Weights are right if every error is within `LIMIT` of it and all together
within one, and if the output tells them from their near misses: of the way from these weights to
those of a near miss, the output may have gone less than half, rounding allowed for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

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
        weights = weights.nan_to_num(0)
        moved = torch.zeros_like(weights)
        if scores:
            by = logits.rounded(torch.finfo(dtype).eps)
            moved = (weights * by.expm1()).nan_to_num(0).clamp_max(1)
        return Rounding(weights, moved, dtype)

    @property
    def unit(self) -> float:
        """The standard deviation of a rounded number, relative to it: errors are uniform."""
        return torch.finfo(self.dtype).eps / 12**0.5

    @cached_property
    def of_weights(self) -> Tensor:
        """The variance of weights that are rounded as exponentials, and as quotients."""
        w = self.weights
        return 2 * torch.where(w > 0, self.unit * (w + torch.finfo(self.dtype).tiny), 0).square()

    @cached_property
    def hidden(self) -> Tensor:
        """How much of each row (…, n) may be given to other keys by rounding."""
        moved = (self.moved * (1 - self.weights)).sum(-1) / 2
        return moved + torch.finfo(self.dtype).eps


class Product:
    """What came out is weights @ v, or the weights themselves if there is no v (…, g, s, e)."""

    def __init__(self, v: Tensor | None) -> None:
        self.v = v

    def __call__(self, weights: Tensor) -> Tensor:
        return weights if self.v is None else times(weights, self.v)

    @cached_property
    def _finite(self) -> Product:
        return Product(None if self.v is None else _finite(self.v))

    @cached_property
    def _squares(self) -> Product:
        return Product(None if self.v is None else _finite(self.v).square())

    def variance(self, by: Rounding, y: Tensor) -> Tensor:
        """The variance (…, n, e) of what came out, y without rounding.

        Scores that move by δ move y by w δ (v − y).
        """
        y, moved = _finite(y), by.moved.square()
        spread = self._squares(moved + by.of_weights) - 2 * y * self._finite(moved)
        spread = (spread + y.square() * moved.sum(-1, keepdim=True)).clamp_min(0)
        return spread + (1 + ALIKE) * (by.unit * y).square()

    def along(self, p: Tensor, by: Rounding, y: Tensor) -> Tensor:
        """The variance (…, n) of Σ p · error: errors of one row depend on each other."""
        v, y = self._finite.v, _finite(y)
        keys = p if v is None else times(p, v.mT)
        total = (p * y).sum(-1, keepdim=True)
        moved = (by.moved * (keys - total)).square() + by.of_weights * keys.square()
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
    alike = empty | (real == y) | (real.isnan() & y.isnan())
    error = (real - y).masked_fill(alike, 0)
    shown = (~empty.expand_as(error)).sum().clamp_min(1)
    slack = (SLACK * _finite(y).abs().amax((-2, -1), keepdim=True)).square() + 1e-30
    outcome = Outcome(False, False)
    for scores in (False, True):
        by = Rounding.of(weights, logits, dtype, scores)
        variance = made.variance(by, y) + slack
        size = torch.where(error == 0, 0, error.square() / variance)
        if not bool((size <= LIMIT**2).all()) or not bool(size.sum() <= shown):
            outcome = Outcome(False, not bool((size <= (2 * LIMIT) ** 2).all()))
            continue
        output = _Output(made, y, error, variance, empty, by)
        seen = logits.open.any(-1)
        told = ((name, _told(output, others, seen, few)) for name, others in logits.near_misses())
        outcome = Outcome(
            True, False, tuple(dict.fromkeys(name for name, is_told in told if not is_told))
        )
        if not outcome.untold:
            break
    return outcome


@dataclass(frozen=True)
class _Output:
    """What came out differs from y = made(weights) by ``error``, which rounding explains."""

    made: Product | Finished
    y: Tensor
    error: Tensor
    variance: Tensor
    empty: Tensor
    by: Rounding

    def tells(self, other: Tensor) -> bool:
        """Whether it is nearer to y than to what other weights give."""
        way = _finite((self.made(other) - self.y).masked_fill(self.empty, 0))
        p = way / self.variance
        gone, length = (p * self.error).sum().abs(), (p * way).sum()
        noise = self.made.along(p, self.by, self.y).sum().sqrt()
        return bool(gone + LIMIT * noise < length / 2)


def _told(output: _Output, others: tuple[Logits, ...], seen: Tensor, few: bool) -> bool:
    """Whether near misses, each farther than the one before, are told, or none has to be.

    The first counts whose weights differ by more than rounding, in the rows (…, n) that are
    ``seen``.
    """
    other = output.by.weights
    for near_miss in others:
        other = near_miss.weights()
        apart = (other - output.by.weights).abs().sum(-1) / 2
        if bool(((apart > output.by.hidden) & seen).any()):
            return output.tells(other)
    return not few or output.tells(other)


def _finite(x: Tensor) -> Tensor:
    return x.nan_to_num(0, 0, 0)


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
