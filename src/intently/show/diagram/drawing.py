"""A column of parts, from the input at the bottom to the output at the top."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from intently.show.diagram.walk import DiagramPart
from intently.show.labels import visible
from intently.show.layout import Layout, width_of, wrapped
from intently.show.style import BELOW, FRAME, GRID, INK, QUIET, WEIGHTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


WIDE = 150.0
"""Width of a box."""
GAP = 15.0
"""Length of an arrow between two boxes."""
ASIDE = WIDE / 2 + 13
"""Distance of the line of a residual from the middle."""
EDGE = ASIDE + 9
"""Distance of the frame of a layer from the middle."""
NARROW = 70.0
"""Width of a box beside others, at least."""


@dataclass
class Column:
    """Draws parts above one another around ``x``; residuals and names stand on one ``side``."""

    paper: Paper
    x: float
    side: int
    y: float = 0.0
    told: str = ""
    """The shape that was written last, at the height ``at``."""
    at: float = -1.0
    waiting: list[tuple[str, str, Point]] = field(default_factory=list)
    """(name, shape, place) of what parts read from elsewhere."""
    boxes: dict[str, float] = field(default_factory=dict)
    """The height of the middle of each box, by the name of its part."""

    def start(self, name: str, takes: str) -> None:
        """Write the name and the shape of the input, below everything."""
        self.paper.text(self.x, self.y - 6, f"{name} {takes}".strip(), ink=QUIET)
        self.told = takes

    def end(self) -> None:
        """Draw the arrow out of the top, with the shape of the output."""
        written = self.told if self.y != self.at else ""
        self._up()
        self.paper.text(self.x, self.y + 6, written, ink=QUIET)

    def draw(self, parts: Iterable[DiagramPart]) -> None:
        """Draw parts one above another."""
        rest = list(parts)
        while rest:
            part = rest.pop(0)
            if part.kind == "layer":
                times = 1 + len(list(takewhile(part.like, rest)))
                del rest[: times - 1]
                self._layer(part, times)
            elif part.kind == "residual":
                self._residual(part, rest.pop(0) if rest and rest[0].kind == "norm" else None)
            elif part.kind == "positions":
                self._positions(part)
            elif part.kind == "parallel":
                self._parallel(part.parts)
            else:
                self._box(part)

    def _box(self, part: DiagramPart) -> None:
        self._up()
        middle = self.boxes[part.name] = self.y + box_height(part, WIDE) / 2
        for n, (name, shape) in enumerate(part.reads):
            self.waiting.append((name, shape, (self.x - WIDE / 2, middle + 5 * n)))
        self.y = self.paper.box(part, self.x, self.y, WIDE)
        self._tell(part.gives)

    def _up(self) -> None:
        self.paper.arrow((self.x, self.y), (self.x, self.y + GAP))
        self.y += GAP

    def _tell(self, shape: str) -> None:
        """Write a shape beside the next arrow if it is not the last one written."""
        if shape != self.told:
            self.paper.text(self.x + 5, self.y + GAP / 2, shape, ink=QUIET, ha="left")
            self.told, self.at = shape, self.y

    def _residual(self, part: DiagramPart, norm: DiagramPart | None) -> None:
        far = any(inner.kind == "layer" for inner in part.parts)
        aside = self.x + self.side * (-EDGE - 14 if far else ASIDE)
        self._line(5)
        branch = self.x, self.y
        self.draw(part.parts)
        if norm is None:
            self._up()
            level = self.y + SUM
            reach = self.x + (SUM if aside > self.x else -SUM)
            self.y = self.paper.sum(self.x, self.y)
        else:
            both = replace(norm, title=f"Add & {_within(norm.title)}")
            self._up()
            level = self.y + box_height(both, WIDE) / 2
            reach = self.x + (WIDE / 2 if aside > self.x else -WIDE / 2)
            self.y = self.paper.box(both, self.x, self.y, WIDE)
        self.paper.arrow(branch, (aside, branch[1]), (aside, level), (reach, level))
        self._tell(part.gives)

    def _line(self, length: float) -> None:
        self.paper.arrow((self.x, self.y), (self.x, self.y + length), head=False)
        self.y += length

    def _layer(self, part: DiagramPart, times: int) -> None:
        bottom = self.y + GAP
        self._line(GAP + 2)
        self.draw(part.parts)
        self._line(8)
        self.paper.frame(self.x - EDGE, bottom, 2 * EDGE, self.y - bottom - 1)
        edge, middle = self.x + self.side * (EDGE + 7), (bottom + self.y) / 2
        ha = "left" if self.side > 0 else "right"
        name = _within(part.title) + "s" * (times > 1)
        if times > 1:
            self.paper.text(edge, middle + 6, f"{times} ×", 13, ha=ha)
            middle -= 6
        self.paper.text(edge, middle, name, 8, QUIET, ha)

    def _positions(self, part: DiagramPart) -> None:
        self._up()
        level, top = self.y + SUM, self.paper.sum(self.x, self.y)
        away = self.x + self.side * 34
        self.paper.wave(away, level)
        self.paper.arrow((away - self.side * 9, level), (self.x + self.side * SUM, level))
        ha = "left" if self.side > 0 else "right"
        own = f" · {part.parameters:,}" if part.parameters else ""
        words = part.title.replace(" ", "\n", 1) + own
        self.paper.text(away + self.side * 13, level, words, 7.5, ha=ha, linespacing=1.15)
        self.y = top
        self._tell(part.gives)

    def _parallel(self, parts: Iterable[DiagramPart]) -> None:
        """Boxes side by side that read the same."""
        parts = list(parts)
        wide = max(NARROW, WIDE / len(parts) - 8)
        places = [self.x + (n - (len(parts) - 1) / 2) * (wide + 8) for n in range(len(parts))]
        self._line(GAP / 2)
        bottom = self.y + GAP
        tops = []
        for part, x in zip(parts, places, strict=True):
            self.paper.arrow((self.x, self.y), (x, self.y), (x, bottom))
            tops.append(self.paper.box(part, x, bottom, wide))
        self.y = max(tops) + GAP / 2
        for x, top in zip(places, tops, strict=True):
            self.paper.arrow((x, top), (x, self.y), (self.x, self.y), head=False)


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

    def box(self, part: DiagramPart, middle: float, bottom: float, width: float) -> float:
        """Draw a part as a box with its title, notes and parameters; return the box's top."""
        below = _below(part, width - 10)
        height = box_height(part, width)
        fill = FILLS.get(part.kind, GRID)
        self.rectangle(middle - width / 2, bottom, width, height, fill)
        step = LINE * len(below)
        shorter = (visible(part.title, n) for n in range(60, 0, -1))
        title = next(x for x in shorter if 72 * width_of([x], TITLE) < width - 8)
        self.text(middle, bottom + height / 2 + step / 2, title, TITLE)
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
        for xs, ys in (((-4, 4), (0, 0)), ((0, 0), (-4, 4))):
            line = [middle + x for x in xs], [y + x for x in ys]
            self.axes.plot(*line, color=INK, lw=0.8, zorder=2.1)
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
        wide = 72 * width_of(text.split("\n"), size)
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


def box_height(part: DiagramPart, width: float) -> float:
    """Return the height of the box of a part, in points."""
    return 21 + LINE * len(_below(part, width - 10))


def _below(part: DiagramPart, room: float) -> list[str]:
    """The small lines of a box: its notes and the number of its parameters."""
    tied = (f"tied to the {part.tied.replace('_', ' ')}",) if part.tied else ()
    own = (f"{part.parameters:,}",) if part.parameters else ()
    text = " · ".join((*part.notes, *tied, *own))
    return wrapped(text, room / 72, SMALL).split("\n") if text else []


def _within(title: str) -> str:
    """A title as it reads within a text; abbreviations keep their capitals."""
    return title.lower() if title[1:2].islower() else title


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
