"""The stage of a story: shapes are added and removed, and scenes record them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

from intently.show.labels import visible
from intently.show.sheet import widths_of
from intently.show.style import light

SHORT, USUAL, LONG = 0.45, 1.6, 2.6
MARGIN = 18.0
NUMBERED = 6
"""Most numbers of a vector that are written out."""
CELL, HIGH = 36.0, 20.0
"""The width of a cell with a number, if no number needs more, and its height."""
FIGURE = 10.5
STRIP, MOST = 190.0, 96
"""The width of a vector without numbers, and the most cells of it."""


class Stage:
    """The visible shapes in drawing order, and the scenes so far."""

    def __init__(self) -> None:
        self.shapes: dict[str, Shape] = {}
        self.scenes: list[Scene] = []

    def put(self, *shapes: Shape) -> None:
        """Put shapes on the stage; each replaces the shape with the same key."""
        self.shapes.update({shape.key: shape for shape in shapes})

    def drop(self, *keys: str) -> None:
        """Remove the shapes with these keys, or with keys that begin with one and a dot."""
        self.shapes = {
            name: shape
            for name, shape in self.shapes.items()
            if not any(name == key or name.startswith(f"{key}.") for key in keys)
        }

    def change(self, key: str, **changed: Any) -> None:
        """Change some attributes of a shape."""
        self.shapes[key] = replace(self.shapes[key], **changed)

    def change_all(self, key: str, **changed: Any) -> None:
        """Change the shapes whose key begins with this one and a dot."""
        for name in self.shapes:
            if name.startswith(f"{key}."):
                self.change(name, **changed)

    def scene(self, caption: str, hold: float = USUAL) -> None:
        """Record the visible shapes as a scene."""
        self.scenes.append(Scene(caption, tuple(self.shapes.values()), hold))

    def size(self) -> tuple[float, float]:
        """Return the width and height that hold every shape of every scene, with a margin."""
        right = bottom = 0.0
        for scene in self.scenes:
            for shape in scene.shapes:
                x, y = _end(shape)
                right, bottom = max(right, x), max(bottom, y)
        return right + MARGIN, bottom + MARGIN


def _end(shape: Shape) -> tuple[float, float]:
    if isinstance(shape, Grid):
        return shape.x + shape.width, shape.y + shape.height
    if isinstance(shape, Curve):
        return max(shape.x, shape.x2), max(shape.y, shape.y2)
    share = {"start": 1.0, "middle": 0.5, "end": 0.0}[shape.anchor]
    return shape.x + share * widest((shape.text,), shape.size), shape.y + shape.size * 0.7


def widest(texts: Sequence[str], size: float) -> float:
    """Return the width in pixels of the widest text."""
    return max(widths(texts, size), default=0.0)


def widths(texts: Sequence[str], size: float) -> list[float]:
    """Return the width in pixels of every text."""
    return list(_widths(tuple(texts), size))


@lru_cache(maxsize=512)
def _widths(texts: tuple[str, ...], size: float) -> tuple[float, ...]:
    with light(texts):
        return tuple(72 * width for width in widths_of(texts, size))


def shortened(text: str, room: float, size: float) -> str:
    """Return the text, shortened to at most ``room`` pixels."""
    cuts = (visible(text, n) for n in range(len(text), 1, -1))
    return next((cut for cut in cuts if widest((cut,), size) <= room), text[:1])


def number(value: float, places: int = 2) -> str:
    """Write a number in few characters, with a real minus.

    >>> number(-0.256), number(12.34), number(0.0001), number(-1234.5), number(1.0)
    ('−0.26', '12.3', '0', '−1.23×10³', '1.00')
    """
    if abs(value) < 0.5 * 10.0**-places:
        return "0"
    return alone(value) if abs(value) >= 10 else Numerals(0, places)(value)


def within(apart: float) -> str:
    """Describe how far two results differ.

    >>> within(1.4e-7), within(0.0)
    (', to within 1e-7', ', exactly')
    """
    if apart == 0:
        return ", exactly"
    return f", to within {apart:.0e}".replace("e-0", "e-")


def shades(values: np.ndarray, largest: float) -> tuple[tuple[float, ...], ...]:
    """Return the shades of numbers (rows, columns); ``largest`` is the darkest."""
    scaled = np.clip(values / (largest or 1.0), -1, 1).round(3)
    return tuple(map(tuple, scaled.tolist()))


def strips(values: np.ndarray, most: int = MOST) -> tuple[np.ndarray, str]:
    """Return vectors (n, d) as at most ``most`` cells each, and a note where cells are means."""
    d = values.shape[-1]
    if d <= most:
        return values, ""
    step = -(-d // most)
    cuts = np.arange(0, d, step)
    sizes = np.diff([*cuts, d])
    return np.add.reduceat(values, cuts, -1) / sizes, f" (each cell the mean of {step} of {d})"


def cell_width(*vectors: np.ndarray) -> float:
    """Return the cell width of vectors (…, d), with room for their numbers where d is small."""
    d = vectors[0].shape[-1]
    return room(*vectors) if d <= NUMBERED else min(16.0, STRIP / d)


def numerals(*vectors: np.ndarray) -> Numerals | None:
    """Return the number format of vectors (…, d); None where d > 6 and numbers are not written."""
    return Numerals.of(*vectors) if vectors[0].shape[-1] <= NUMBERED else None


def headed(text: str, written: Numerals | None) -> str:
    """Return a heading with the factor of the numbers under it."""
    return text if written is None else written.heading(text)


def vector(
    key: str,
    x: float,
    y: float,
    values: np.ndarray,
    largest: float,
    written: Numerals | None,
    cell: float,
    **more: Any,
) -> Grid:
    """Return a vector (d,) as a row of cells 20 pixels high, with its numbers where ``written``."""
    texts = () if written is None else tuple(map(written, values))
    return Grid(key, x, y, (cell, HIGH), shades(values[None], largest), texts, **more)


def room(*values: np.ndarray) -> float:
    """Return the width of a cell that holds the longest of these numbers, in their one format."""
    written = Numerals.of(*values)
    texts = {written(value) for part in values for value in part.flat if np.isfinite(value)}
    return max(CELL, widest(sorted(texts), FIGURE) + 6)


def lettered(
    key: str,
    x: float,
    y: float,
    values: np.ndarray,
    largest: float,
    written: Numerals,
    cell: float,
    **more: Any,
) -> Grid:
    """Return a matrix (rows, columns) with all its numbers; NaN is a row yet to come, −∞ hidden."""
    texts = tuple("" if v != v else "−∞" if v == -np.inf else written(v) for v in values.flat)
    shaded = shades(np.where(np.isfinite(values), values, 0.0), largest)
    shaded = tuple(
        tuple(None if v != v else float("nan") if v == -np.inf else shade for v, shade in both)
        for both in (zip(row, own, strict=True) for row, own in zip(values, shaded, strict=True))
    )
    return Grid(key, x, y, (cell, HIGH), shaded, texts, **more)


def bar(
    j: int, x: float, y: float, high: float, pad: float, room: float, weight: float
) -> tuple[Grid, Text]:
    """Return a weight as a bar in row j, ``room`` pixels wide at 1, and its number behind it."""
    wide = max(1.0, room * weight)
    ink = "ink" if weight >= 0.005 else "quiet"
    return (
        Grid(f"bar.{j}", x, y + pad, (wide, high - 2 * pad), ((0.62,),), edge=""),
        Text(f"weight.{j}", x + wide + 6, y + high / 2, number(weight), 12, ink),
    )


Colour = Literal["ink", "quiet", "frame", "accent", "blue", ""]
Anchor = Literal["start", "middle", "end"]
Shade: TypeAlias = float | None
"""From −1 to 1; NaN is hatched, for masked cells; None is clear."""


@dataclass(frozen=True)
class Grid:
    """Cells of size ``cell`` (width, height), row by row, from the top left corner (x, y).

    ``texts`` are written into the cells; ``edge`` is drawn around the whole grid.
    """

    key: str
    x: float
    y: float
    cell: tuple[float, float]
    shades: tuple[tuple[Shade, ...], ...]
    texts: tuple[str, ...] = ()
    size: float = 10.5
    edge: Colour = "frame"
    opacity: float = 1.0

    @property
    def width(self) -> float:
        """The width of all columns together."""
        return self.cell[0] * len(self.shades[0])

    @property
    def height(self) -> float:
        """The height of all rows together."""
        return self.cell[1] * len(self.shades)


@dataclass(frozen=True)
class Text:
    """A line of text, vertically centred at y, with its start, middle or end at x."""

    key: str
    x: float
    y: float
    text: str
    size: float = 12.0
    colour: Colour = "ink"
    anchor: Anchor = "start"
    opacity: float = 1.0


@dataclass(frozen=True)
class Curve:
    """A ribbon from (x, y) to (x2, y2) with vertical ends, ``rise`` above the straight line."""

    key: str
    x: float
    y: float
    x2: float
    y2: float
    width: float
    shade: float = 0.7
    rise: float = 0.0
    opacity: float = 1.0


Shape: TypeAlias = Grid | Text | Curve


@dataclass(frozen=True)
class Scene:
    """One step of a story: a caption, its shapes, and its duration in seconds."""

    caption: str
    shapes: tuple[Shape, ...]
    hold: float


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
