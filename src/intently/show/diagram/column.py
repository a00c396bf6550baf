"""A column of parts, from the input at the bottom to the output at the top."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from intently.show.diagram.paper import SUM, Paper, Point, box_height
from intently.show.diagram.walk import Part
from intently.show.style import QUIET

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

    def end(self, name: str) -> None:
        """Draw the arrow out of the top, with the shape of the output."""
        written = self.told if self.y != self.at else ""
        self._up()
        self.paper.text(self.x, self.y + 6, f"{name} {written}".strip(), ink=QUIET)

    def draw(self, parts: Iterable[Part]) -> None:
        """Draw parts one above another."""
        rest = list(parts)
        while rest:
            part = rest.pop(0)
            if part.kind == "layer":
                times = 1 + sum(1 for _ in _alike(part, rest))
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

    def _box(self, part: Part) -> None:
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

    def _residual(self, part: Part, norm: Part | None) -> None:
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
            speaks = norm.title.lower() if norm.title[1:2].islower() else norm.title
            both = replace(norm, title=f"Add & {speaks}")
            self._up()
            level = self.y + box_height(both, WIDE) / 2
            reach = self.x + (WIDE / 2 if aside > self.x else -WIDE / 2)
            self.y = self.paper.box(both, self.x, self.y, WIDE)
        self.paper.arrow(branch, (aside, branch[1]), (aside, level), (reach, level))
        self._tell(part.gives)

    def _line(self, length: float) -> None:
        self.paper.arrow((self.x, self.y), (self.x, self.y + length), head=False)
        self.y += length

    def _layer(self, part: Part, times: int) -> None:
        bottom = self.y + GAP
        self._line(GAP + 2)
        self.draw(part.parts)
        self._line(8)
        self.paper.frame(self.x - EDGE, bottom, 2 * EDGE, self.y - bottom - 1)
        edge, middle = self.x + self.side * (EDGE + 7), (bottom + self.y) / 2
        ha = "left" if self.side > 0 else "right"
        name = part.title.lower() if part.title[1:2].islower() else part.title
        name += "" if times == 1 else "s"
        if times > 1:
            self.paper.text(edge, middle + 6, f"{times} ×", 13, ha=ha)
            middle -= 6
        self.paper.text(edge, middle, name, 8, QUIET, ha)

    def _positions(self, part: Part) -> None:
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

    def _parallel(self, parts: Iterable[Part]) -> None:
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


def _alike(part: Part, rest: Iterable[Part]) -> Iterable[Part]:
    for other in rest:
        if not part.like(other):
            return
        yield other
