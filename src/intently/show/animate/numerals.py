"""The number format of a matrix: the same for all its cells, and short enough to fit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

WHOLE = 999_999
"""The largest whole number that is written out: a dot product of four 8-bit pixels is."""
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Numerals:
    """Numbers divided by 10 to the ``power``, with ``places`` after the point.

    Numbers that round to zero are written 0, and minus is a real minus.
    """

    power: int = 0
    places: int = 2

    @classmethod
    def of(cls, *values: np.ndarray) -> Numerals:
        """Choose a format for all these numbers; non-finite numbers are ignored.

        Whole numbers of up to six digits stay whole. Others keep two or three digits of the
        largest; where that has more than three digits before the point, or only zeros in two places
        after it, a common power of ten is factored out.

        >>> every = np.array([14630.5, -44.2]), np.array([70.0, 65025.0]), np.array([0.5, -2.25])
        >>> [[Numerals.of(x)(y) for y in x] for x in every]
        [['14.6', '0'], ['70', '65025'], ['0.50', '−2.25']]
        >>> Numerals.of(every[0]).heading("keys")
        'keys (×10³)'
        """
        every = np.concatenate([np.ravel(x).astype(np.float64) for x in values])
        every = every[np.isfinite(every)]
        largest = float(np.abs(every).max(initial=0.0))
        if largest <= WHOLE and (every == every.round()).all():
            return cls(0, 0)
        power = 0
        if not 0.1 <= largest < 999.5:
            power = max(-300, 3 * math.floor(math.log10(largest) / 3))
            power += 3 * (largest / 10.0**power >= 999.5)
        return cls(power).like(every)

    def like(self, values: np.ndarray) -> Numerals:
        """Return the same power with the places that fit any number of at most this size."""
        largest = float(np.abs(values).max(initial=0.0)) / 10.0**self.power
        places = next((n for n in (2, 1) if round(largest, n) < 10 ** (3 - n)), 0)
        return Numerals(self.power, places)

    @property
    def factor(self) -> str:
        """The factor of every number, such as ``×10³``; nothing for 1."""
        return f"×10{str(self.power).translate(RAISED)}" if self.power else ""

    def heading(self, text: str) -> str:
        """Return a heading with the factor."""
        return f"{text} ({self.factor})" if self.factor else text

    def __call__(self, value: float) -> str:
        """Write one number."""
        value = float(value) / 10.0**self.power
        if abs(value) < 0.5 * 10.0**-self.places:
            return "0"
        return f"{value:.{self.places}f}".replace("-", "−")


def alone(value: float) -> str:
    """Write a single number, with its factor.

    >>> alone(-1234.5), alone(8.05), alone(4e-7)
    ('−1.23×10³', '8.05', '400×10⁻⁹')
    """
    written = Numerals.of(np.array([value]))
    return written(value) + written.factor
