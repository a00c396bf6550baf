"""The shapes of a story: grids of shaded cells, words, and curves, on a sheet in pixels.

Colours are symbolic: a shade from −1 (darkest sand) over 0 (paper) to 1 (darkest blue), or a name
such as ``"ink"``, so that a page is light or dark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

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
