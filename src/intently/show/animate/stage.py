"""The stage of a story: shapes are added and removed, and scenes record them.

Shapes are grids of shaded cells, words, and curves, on a sheet in pixels. Colours are symbolic: a
shade from −1 (darkest sand) over 0 (paper) to 1 (darkest blue), or a name such as ``"ink"``, so
that a page is light or dark. Numbers of one matrix have one format, short enough to fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

from intently.show.labels import visible
from intently.show.layout import widths_of
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
WHOLE = 999_999
"""The largest whole number that is written out: a dot product of four 8-bit pixels is."""
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

Colour = Literal["ink", "quiet", "frame", "accent", "blue", ""]
Anchor = Literal["start", "middle", "end"]
Shade: TypeAlias = float | None
"""From −1 to 1; None is clear."""


@dataclass(frozen=True)
class CellGrid:
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
class Words:
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
    """A ribbon from (x, y) to (x2, y2) with vertical ends."""

    key: str
    x: float
    y: float
    x2: float
    y2: float
    width: float
    shade: float = 0.7
    opacity: float = 1.0


Shape: TypeAlias = CellGrid | Words | Curve


@dataclass(frozen=True)
class StoryScene:
    """One step of a story: a caption, its shapes, and its duration in seconds."""

    caption: str
    shapes: tuple[Shape, ...]
    hold: float


class Stage:
    """The visible shapes in drawing order, and the scenes so far."""

    def __init__(self) -> None:
        self.shapes: dict[str, Shape] = {}
        self.scenes: list[StoryScene] = []

    def put(self, *shapes: Shape) -> None:
        """Put shapes on the stage; each replaces the shape with the same key."""
        self.shapes.update({shape.key: shape for shape in shapes})

    def note(self, key: str, x: float, y: float, text: str, anchor: Anchor = "start") -> None:
        """Put a heading on the stage."""
        self.put(Words(key, x, y, text, 11, "quiet", anchor))

    def drop(self, *keys: str) -> None:
        """Remove the shapes with these keys, or with keys that begin with one and a dot."""
        for name in list(self.shapes):
            if any(name == key or name.startswith(f"{key}.") for key in keys):
                del self.shapes[name]

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
        self.scenes.append(StoryScene(caption, tuple(self.shapes.values()), hold))

    def size(self) -> tuple[float, float]:
        """Return the width and height that hold every shape of every scene, with a margin."""
        ends = [(0.0, 0.0), *(_end(shape) for scene in self.scenes for shape in scene.shapes)]
        right, bottom = map(max, zip(*ends))
        return right + MARGIN, bottom + MARGIN


def _end(shape: Shape) -> tuple[float, float]:
    if isinstance(shape, CellGrid):
        return shape.x + shape.width, shape.y + shape.height
    if isinstance(shape, Curve):
        return max(shape.x, shape.x2), max(shape.y, shape.y2)
    share = {"start": 1.0, "middle": 0.5, "end": 0.0}[shape.anchor]
    return shape.x + share * widest((shape.text,), shape.size), shape.y + shape.size * 0.7


# --- texts ----------------------------------------------------------------------------------------


def widest(texts: Sequence[str], size: float) -> float:
    """Return the width in pixels of the widest text."""
    return max(widths(tuple(texts), size), default=0.0)


@lru_cache(maxsize=512)
def widths(texts: tuple[str, ...], size: float) -> tuple[float, ...]:
    """Return the width in pixels of every text."""
    with light(texts):
        return tuple(72 * width for width in widths_of(texts, size))


def shortened(text: str, room: float, size: float) -> str:
    """Return the text, shortened to at most ``room`` pixels."""
    cuts = (visible(text, n) for n in range(len(text), 1, -1))
    return next((cut for cut in cuts if widest((cut,), size) <= room), text[:1])


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


def number(value: float, places: int = 2) -> str:
    """Write a number in few characters, with a real minus.

    >>> number(-0.256), number(12.34), number(0.0001), number(-1234.5), number(1.0)
    ('−0.26', '12.3', '0', '−1.23×10³', '1.00')
    """
    return alone(value) if abs(value) >= 10 else Numerals(0, places)(value)


def within(apart: float) -> str:
    """Describe how far two results differ.

    >>> within(1.4e-7), within(0.0)
    (', to within 1e-7', ', exactly')
    """
    return f", to within {apart:.0e}".replace("e-0", "e-") if apart else ", exactly"


def numerals(*vectors: np.ndarray) -> Numerals | None:
    """Return the number format of vectors (…, d); None where d > 6 and numbers are not written."""
    return Numerals.of(*vectors) if vectors[0].shape[-1] <= NUMBERED else None


def headed(text: str, written: Numerals | None) -> str:
    """Return a heading with the factor of the numbers under it."""
    return text if written is None else written.heading(text)


# --- numbers as cells -----------------------------------------------------------------------------


def largest(*values: np.ndarray) -> float:
    """Return the largest size of some numbers."""
    return max(float(np.abs(x).max(initial=0.0)) for x in values)


def shades(values: np.ndarray, most: float) -> tuple[tuple[float, ...], ...]:
    """Return the shades of numbers (rows, columns); ``most`` is the darkest."""
    return tuple(map(tuple, (values / (most or 1.0)).round(3).tolist()))


def strips(values: np.ndarray) -> tuple[np.ndarray, str]:
    """Return vectors (n, d) as at most `MOST` cells each, and a note where cells are means."""
    d = values.shape[-1]
    if d <= MOST:
        return values, ""
    step = -(-d // MOST)
    cuts = np.arange(0, d, step)
    sizes = np.diff([*cuts, d])
    return np.add.reduceat(values, cuts, -1) / sizes, f" (each cell the mean of {step} of {d})"


def room(*values: np.ndarray) -> float:
    """Return the width of a cell that holds the longest of these numbers, in their one format."""
    written = Numerals.of(*values)
    texts = {written(value) for part in values for value in part.flat if np.isfinite(value)}
    return max(CELL, widest(sorted(texts), FIGURE) + 6)


def cell_width(*vectors: np.ndarray) -> float:
    """Return the cell width of vectors (…, d), with room for their numbers where d is small."""
    d = vectors[0].shape[-1]
    return room(*vectors) if d <= NUMBERED else min(16.0, STRIP / d)


def vector(
    key: str,
    x: float,
    y: float,
    values: np.ndarray,
    most: float,
    written: Numerals | None,
    cell: float,
    **more: Any,
) -> CellGrid:
    """Return a vector (d,) as a row of cells 20 pixels high, with its numbers where ``written``."""
    texts = () if written is None else tuple(map(written, values))
    return CellGrid(key, x, y, (cell, HIGH), shades(values[None], most), texts, **more)
