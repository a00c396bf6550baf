"""Scalings of rotary rates, for texts longer than those seen in training.

Without scaling, pair i of a width w rotates by base^(−2i/w) radians per step. A scaling is a value
passed to ``Rotary(d, scaling=…)``; it changes these rates, and may multiply the rotated vectors by
its ``gain`` (both queries and keys, so the scores by its square).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from intently.errors import ArgumentError, build

Length: TypeAlias = int | Tensor
"""Position after the last one, a number or a tensor (…, 1, 1) with one for each batch row."""


class RotaryPairs(NamedTuple):
    """The pairs of dimensions that are rotated, and how their angles are computed.

    >>> RotaryPairs(100.0, 4, torch.float32, torch.device("cpu")).rates()
    tensor([1.0000, 0.1000])
    """

    base: float | Tensor
    width: int
    dtype: torch.dtype
    device: torch.device

    def steps(self) -> Tensor:
        """Steps a radian, base^(2i/width): (…, width / 2)."""
        numbers = torch.arange(0, self.width, 2, device=self.device).to(self.dtype)
        return self.base ** (numbers / self.width)

    def rates(self) -> Tensor:
        """Radians a step without a scaling, base^(−2i/width).

        Source: Su et al. 2021, "RoFormer", section 3.2.2, equation 15.
        """
        return 1 / self.steps()


class Scaling:
    """The base class of scalings: checks the width, and returns rates."""

    by_length: ClassVar[bool] = False
    """Whether the rates depend on the length of the text."""

    def rates(self, pairs: RotaryPairs, length: Length) -> Tensor:
        """Radians per step: (width / 2,), or (…, 1, width / 2) for lengths (…, 1, 1)."""
        raise NotImplementedError

    def gain(self) -> float:
        """Return the factor of the rotated vectors."""
        return 1.0

    def check(self, width: int) -> None:
        """Raise `ArgumentError` if it does not support this number of dimensions."""


@dataclass(frozen=True)
class Linear(Scaling):
    """Every rate divided by ``factor``: positions are compressed into the trained range.

    Source: Chen et al. 2023, "Extending Context Window of Large Language Models via Positional
    Interpolation", section 2.3, equation 4.

    >>> Linear(4.0).rates(RotaryPairs(100.0, 4, torch.float32, torch.device("cpu")), 8)
    tensor([0.2500, 0.0250])
    """

    factor: float

    def __post_init__(self) -> None:
        _at_least_one(self.factor)

    def rates(self, pairs: RotaryPairs, length: Length) -> Tensor:
        return pairs.rates() / self.factor


@dataclass(frozen=True)
class DynamicNTK(Scaling):
    """The base grows with the length n once it exceeds the ``original`` training length.

    base · (factor · n / original − factor + 1)^(w / (w − 2)). A text that grows past ``original``
    changes the rates of all its positions: cached keys keep the old rates, unless the final
    ``length`` was given when they were rotated.

    Source: Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models",
    sections 3.1 and 3.3.

    >>> DynamicNTK(2.0, 8).rates(RotaryPairs(100.0, 4, torch.float32, torch.device("cpu")), 8)
    tensor([1.0000, 0.1000])
    >>> DynamicNTK(2.0, 8).rates(RotaryPairs(100.0, 4, torch.float32, torch.device("cpu")), 12)
    tensor([1.0000, 0.0500])
    """

    factor: float
    original: int
    by_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _at_least_one(self.factor)
        _trained(self.original)

    def check(self, width: int) -> None:
        if width < 4:
            raise build(ArgumentError, "width", "at least 4 dimensions for DynamicNTK", width)

    def rates(self, pairs: RotaryPairs, length: Length) -> Tensor:
        if isinstance(length, Tensor):
            longest = length.clamp(min=self.original).to(pairs.dtype)
        else:
            longest = max(length, self.original)
        growth = self.factor * longest / self.original - (self.factor - 1)
        base = pairs.base * growth ** (pairs.width / (pairs.width - 2))
        return pairs._replace(base=base).rates()


@dataclass(frozen=True)
class YaRN(Scaling):
    """Fast pairs keep their rate, slow rates are divided by ``factor``, the rest is interpolated.

    Pairs that turn more than ``beta_fast`` times within the ``original`` length are fast, less than
    ``beta_slow`` times slow; between the two, rates are interpolated linearly in the index of the
    pair, as in the authors' code, its bounds rounded outwards unless ``truncate`` is False.
    ``attention``
    is 0.1 ln(factor) + 1 unless given.

    Source: Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models",
    sections 3.2 and 3.4.

    >>> YaRN(4.0, 64).rates(RotaryPairs(10_000.0, 8, torch.float32, torch.device("cpu")), 0)
    tensor([1.0000e+00, 6.2500e-02, 2.5000e-03, 2.5000e-04])
    """

    factor: float
    original: int
    _: KW_ONLY
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        _at_least_one(self.factor)
        _trained(self.original)
        if not 0 < self.beta_slow <= self.beta_fast:
            expected = f"a number in (0, beta_fast={self.beta_fast}]"
            cause = "fast pairs turn more often than slow ones"
            raise build(ArgumentError, "beta_slow", expected, self.beta_slow, cause)

    def gain(self) -> float:
        if self.attention is not None:
            return self.attention
        return 0.1 * math.log(self.factor) + 1

    def rates(self, pairs: RotaryPairs, length: Length) -> Tensor:
        fast, slow = (self._pair(turns, pairs) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            fast, slow = math.floor(fast), math.ceil(slow)
        fast, slow = max(fast, 0), min(slow, pairs.width - 1)
        number = torch.arange(pairs.width // 2, device=pairs.device).to(pairs.dtype)
        slowed = ((number - fast) / (slow - fast if slow != fast else 0.001)).clamp(0, 1)
        rates = pairs.rates()
        return rates / self.factor * slowed + rates * (1 - slowed)

    def _pair(self, turns: float, pairs: RotaryPairs) -> float:
        """The fractional index of the pair with this many turns within the original length."""
        wide, base = pairs.width, cast(float, pairs.base)
        return wide * math.log(self.original / (2 * math.pi * turns)) / (2 * math.log(base))


@dataclass(frozen=True)
class LongRope(Scaling):
    """Every pair has its own divisor: ``short`` up to the ``original`` length, ``long`` beyond.

    Both hold width / 2 numbers, which the authors found by search. ``attention`` is
    √(1 + ln(factor) / ln(original)) unless given, where factor is the new length divided by the
    original length. As with `DynamicNTK`, a text that grows past ``original`` changes its rates.

    Source: Ding et al. 2024, "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens",
    section 3; the attention factor as in the Phi-3 models.

    >>> stretch = LongRope([1.0, 1.0], [2.0, 4.0], factor=4.0, original=8)
    >>> stretch.rates(RotaryPairs(100.0, 4, torch.float32, torch.device("cpu")), 9)
    tensor([0.5000, 0.0250])
    """

    short: Sequence[float]
    long: Sequence[float]
    _: KW_ONLY
    factor: float
    original: int
    attention: float | None = None
    by_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "short", tuple(float(x) for x in self.short))
        object.__setattr__(self, "long", tuple(float(x) for x in self.long))
        _at_least_one(self.factor)
        _trained(self.original, 2)

    def check(self, width: int) -> None:
        for name in ("short", "long"):
            n = len(getattr(self, name))
            if n != width // 2:
                raise build(
                    ArgumentError, name, f"one number for each pair, width/2={width // 2}", n
                )

    def gain(self) -> float:
        if self.attention is not None:
            return self.attention
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original))

    def rates(self, pairs: RotaryPairs, length: Length) -> Tensor:
        short, long = (pairs.steps().new_tensor(x) for x in (self.short, self.long))
        if isinstance(length, Tensor):
            divisors = torch.where(length > self.original, long, short)
        else:
            divisors = long if length > self.original else short
        return 1 / (divisors * pairs.steps())


@dataclass(frozen=True)
class Llama3(Scaling):
    """Pairs that turn less than ``low`` times within the ``original`` length are slowed down.

    Their rate is divided by ``factor``; pairs that turn more than ``high`` times keep their rate;
    between the two, rates are interpolated linearly in the number of turns.

    Source: Grattafiori et al. 2024, "The Llama 3 Herd of Models"; the rule is that of the Llama 3.1
    models published with it.

    >>> pairs = RotaryPairs(10_000.0, 8, torch.float32, torch.device("cpu"))
    >>> Llama3(8.0, original=64).rates(pairs, 0)
    tensor([1.0000e+00, 1.3042e-02, 1.2500e-03, 1.2500e-04])
    """

    factor: float = 8.0
    _: KW_ONLY
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def __post_init__(self) -> None:
        _at_least_one(self.factor)
        _trained(self.original)
        if not 0 < self.low < self.high:
            raise build(
                ArgumentError, "low", f"a number of turns in (0, high={self.high})", self.low
            )

    def rates(self, pairs: RotaryPairs, length: Length) -> Tensor:
        rates = pairs.rates()
        turns = rates * (self.original / (2 * math.pi))
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return rates / self.factor * (1 - kept) + rates * kept


def _at_least_one(factor: float) -> None:
    if isinstance(factor, bool) or not (isinstance(factor, (int, float)) and factor >= 1):
        cause = "it is the new length divided by the trained one"
        raise build(ArgumentError, "factor", "a number ≥ 1", repr(factor), cause)


def _trained(original: int, least: int = 1) -> None:
    if isinstance(original, bool) or not (isinstance(original, int) and original >= least):
        expected = f"the length that was trained, an int ≥ {least}"
        raise build(ArgumentError, "original", expected, repr(original))
