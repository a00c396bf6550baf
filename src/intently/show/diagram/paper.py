"""Boxes, sums, arrows and texts in points, y upward, on a sheet that grows with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from intently.show.diagram.walk import Part
from intently.show.labels import visible
from intently.show.layout import Layout, width_of, wrapped
from intently.show.style import BELOW, FRAME, GRID, INK, WEIGHTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[float, float]

TITLE, SMALL = 9.0, 7.0
"""Sizes of the title of a box and of what stands below it, in points."""
LINE = 9.4
"""Height of a small line."""
SUM = 7.0
"""Radius of a sum."""
BEND = 5.0
"""Radius of a bend of an arrow."""
PAPER = "white"

FILLS = {
    "attention": WEIGHTS[3],
    "cell": WEIGHTS[3],
    "feed-forward": WEIGHTS[2],
    "norm": BELOW[3],
    "module": PAPER,
}
"""The fill of a box by the kind of its part; grey for the others."""


@dataclass
class Paper:
    """Draws onto axes in points; remembers how far the drawing reaches."""

    axes: Axes
    layout: Layout
    reach: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])

    @classmethod
    def new(cls) -> Paper:
        """Return empty paper."""
        layout = Layout()
        return cls(layout.blank(0, 0, 1, 1), layout)

    def box(self, part: Part, middle: float, bottom: float, width: float) -> float:
        """Draw a part as a box with its title, notes and parameters; return the box's top."""
        below = _below(part, width - 10)
        height = box_height(part, width)
        fill = FILLS.get(part.kind, GRID)
        self.rectangle(middle - width / 2, bottom, width, height, fill)
        step = LINE * len(below)
        self.text(middle, bottom + height / 2 + step / 2, visible(part.title, 60), TITLE)
        for n, line in enumerate(below):
            y = bottom + height / 2 + step / 2 - TITLE / 2 - LINE * (n + 0.62)
            self.text(middle, y, line, SMALL)
        return bottom + height

    def rectangle(
        self, left: float, bottom: float, width: float, height: float, fill: str, **look: Any
    ) -> None:
        """Draw a rectangle with rounded corners."""
        from matplotlib.patches import FancyBboxPatch

        look = {"ec": INK, "lw": 0.7, "zorder": 2, **look}
        shape = "round,pad=0,rounding_size=3.5"
        patch = FancyBboxPatch((left, bottom), width, height, boxstyle=shape, fc=fill, **look)
        self.axes.add_artist(patch)
        self._reach(left, bottom)
        self._reach(left + width, bottom + height)

    def frame(self, left: float, bottom: float, width: float, height: float) -> None:
        """Draw the frame around the parts of a layer, behind them."""
        self.rectangle(left, bottom, width, height, "none", ec=FRAME, lw=1.1, zorder=0.5)

    def sum(self, middle: float, bottom: float) -> float:
        """Draw a circle with a plus; return its top."""
        from matplotlib.patches import Circle

        y = bottom + SUM
        self.axes.add_artist(Circle((middle, y), SUM, fc=PAPER, ec=INK, lw=0.8, zorder=2))
        for line in ([(-1, 0), (1, 0)], [(0, -1), (0, 1)]):
            xs, ys = ([middle + 4 * p[0] for p in line], [y + 4 * p[1] for p in line])
            self.axes.plot(xs, ys, color=INK, lw=0.8, zorder=2.1)
        return y + SUM

    def wave(self, middle: float, y: float) -> None:
        """Draw a circle with one period of a sine: positions."""
        from math import pi, sin

        from matplotlib.patches import Circle

        self.axes.add_artist(Circle((middle, y), 9, fc=PAPER, ec=INK, lw=0.8, zorder=2))
        xs = [n / 12 * 6 for n in range(-12, 13)]
        ys = [y + 4 * sin(x / 6 * pi) for x in xs]
        self.axes.plot([middle + x for x in xs], ys, color=INK, lw=0.9, zorder=2.1)

    def arrow(self, *points: Point, ink: str = INK, head: bool = True, lw: float = 0.8) -> None:
        """Draw an arrow through points, with round bends."""
        from matplotlib.patches import PathPatch, Polygon

        tip, before = points[-1], points[-2]
        if head:
            x, y = _toward(before, tip)
            a, b = 3.8, 1.9
            back = tip[0] - a * x, tip[1] - a * y
            corners = [tip, (back[0] - b * y, back[1] + b * x), (back[0] + b * y, back[1] - b * x)]
            self.axes.add_artist(Polygon(corners, fc=ink, ec="none", zorder=3))
            points = (*points[:-1], back)
        self.axes.add_artist(PathPatch(_bent(points), fc="none", ec=ink, lw=lw, zorder=1))
        for point in points:
            self._reach(*point)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = SMALL,
        ink: str = INK,
        ha: str = "center",
        **look: Any,
    ) -> None:
        """Write a text around the height y."""
        look = {"va": "center", "zorder": 4, **look}
        self.axes.text(x, y, text, size=size, color=ink, ha=ha, parse_math=False, **look)
        wide = 72 * max(width_of([line], size) for line in text.split("\n"))
        left = x - {"center": 0.5, "left": 0.0, "right": 1.0}[ha] * wide
        self._reach(left, y - size / 2)
        self._reach(left + wide, y + size / 2)

    def fitted(self) -> Layout:
        """Return the layout of what is drawn."""
        left, bottom, right, top = self.reach
        self.layout.reshape(self.axes, (left, right), (bottom, top), 1 / 72)
        for artist in self.axes.get_children():
            artist.set(clip_on=False, in_layout=False)
        return self.layout

    def _reach(self, x: float, y: float) -> None:
        low, high = self.reach[:2], self.reach[2:]
        self.reach = [min(low[0], x), min(low[1], y), max(high[0], x), max(high[1], y)]


def box_height(part: Part, width: float) -> float:
    """Return the height of the box of a part, in points."""
    return 21 + LINE * len(_below(part, width - 10))


def _below(part: Part, room: float) -> list[str]:
    """The small lines of a box: its notes and the number of its parameters."""
    tied = (f"tied to the {part.tied.replace('_', ' ')}",) if part.tied else ()
    own = (f"{part.parameters:,}",) if part.parameters else ()
    text = " · ".join((*part.notes, *tied, *own))
    return wrapped(text, room / 72, SMALL).split("\n") if text else []


def _toward(start: Point, end: Point) -> Point:
    x, y = end[0] - start[0], end[1] - start[1]
    length = max((x * x + y * y) ** 0.5, 1e-9)
    return x / length, y / length


def _bent(points: Sequence[Point]) -> Any:
    """A path through points whose corners are round."""
    from matplotlib.path import Path

    places, codes = [points[0]], [Path.MOVETO]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        back, on = _toward(corner, before), _toward(corner, after)
        short = [abs(a[0] - corner[0]) + abs(a[1] - corner[1]) for a in (before, after)]
        r = min(BEND, *(each / 2 for each in short))
        places += [(corner[0] + r * back[0], corner[1] + r * back[1]), corner]
        places += [(corner[0] + r * on[0], corner[1] + r * on[1])]
        codes += [Path.LINETO, Path.CURVE3, Path.CURVE3]
    return Path([*places, points[-1]], [*codes, Path.LINETO])
