"""A column of parts, from the input at the bottom to the output at the top."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from intently.foundation.parts import Part
from intently.show.diagram.paper import SUM, Paper, Point, box_height
from intently.show.style import QUIET

WIDE = 150.0
"""Width of a box."""
GAP = 15.0
"""Length of an arrow between two boxes."""
ASIDE = WIDE / 2 + 13
"""Distance of the line of a residual from the middle."""
EDGE = ASIDE + 9
"""Distance of the frame of a layer from the middle."""
NARROW = 96.0
"""Width of the boxes of queries, keys and values."""


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

    def start(self, name: str, takes: str) -> None:
        """Write the name and the shape of the input, below everything."""
        self.paper.text(self.x, self.y - 6, f"{name} {takes}".strip(), ink=QUIET)
        self.told = takes

    def end(self, name: str) -> None:
        """Draw the arrow out of the top, with the shape of the output."""
        written = self.told if self.y != self.at else ""
        self._up()
        self.paper.text(self.x, self.y + 6, f"{name} {written}".strip(), ink=QUIET)

    def draw(self, parts: Iterable[Part], expand: bool = False) -> None:
        """Draw parts one above another; with ``expand`` also what is in attention."""
        rest = list(parts)
        while rest:
            part = rest.pop(0)
            if part.kind == "layer":
                times = 1 + sum(1 for _ in _alike(part, rest))
                del rest[: times - 1]
                self._layer(part, times, expand)
            elif part.kind == "residual":
                merged = rest.pop(0) if rest and rest[0].kind == "norm" else None
                self._residual(part, merged, expand)
            elif part.kind == "positions":
                self._positions(part)
            elif part.kind == "attention" and expand:
                self._attention(part)
            elif part.kind == "feed-forward" and expand:
                self.draw(part.parts)
            else:
                self._box(part)

    def _box(self, part: Part) -> None:
        self._up()
        for n, (name, shape) in enumerate(part.reads):
            self.waiting.append(
                (name, shape, (self.x - WIDE / 2, self.y + box_height(part, WIDE) / 2 + 5 * n))
            )
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

    def _residual(self, part: Part, norm: Part | None, expand: bool) -> None:
        far = any(inner.kind == "layer" for inner in part.parts)
        wide = 1.5 * NARROW + 34 if expand and _attends(part) else ASIDE
        aside = self.x + (-self.side * (EDGE + 14) if far else self.side * wide)
        self._line(5)
        branch = self.x, self.y
        self.draw(part.parts, expand)
        if norm is None:
            self._up()
            level = self.y + SUM
            reach = self.x + (SUM if aside > self.x else -SUM)
            self.y = self.paper.sum(self.x, self.y)
        else:
            both = replace(norm, title=f"Add & {norm.title[0].lower()}{norm.title[1:]}")
            if norm.title.isupper() or norm.title.startswith("RMS"):
                both = replace(norm, title=f"Add & {norm.title}")
            self._up()
            level = self.y + box_height(both, WIDE) / 2
            reach = self.x + (WIDE / 2 if aside > self.x else -WIDE / 2)
            self.y = self.paper.box(both, self.x, self.y, WIDE)
        self.paper.arrow(branch, (aside, branch[1]), (aside, level), (reach, level))
        self._tell(part.gives)

    def _line(self, length: float) -> None:
        self.paper.arrow((self.x, self.y), (self.x, self.y + length), head=False)
        self.y += length

    def _layer(self, part: Part, times: int, expand: bool) -> None:
        bottom = self.y + GAP
        self._line(GAP + 2)
        self.draw(part.parts, expand)
        self._line(8)
        half = EDGE if not expand else 1.5 * NARROW + 46
        self.paper.frame(self.x - half, bottom, 2 * half, self.y - bottom - 1)
        edge, middle = self.x + self.side * (half + 7), (bottom + self.y) / 2
        ha = "left" if self.side > 0 else "right"
        name = part.title.lower() + ("" if times == 1 else "s")
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
        own = f"\n{part.total:,}" if part.total else ""
        words = part.title.replace(" ", "\n", 1) + own
        self.paper.text(away + self.side * 13, level, words, 7.5, ha=ha, linespacing=1.15)
        self.y = top
        self._tell(part.gives)

    def _attention(self, part: Part) -> None:
        """Queries, keys and values beside one another, then the weights and their product."""
        q, k, v = part.parts[:3]
        before, rest = _split(part.parts[3:])
        weights, product, *after = rest
        columns = [self.x + (n - 1) * (NARROW + 8) for n in range(3)]
        self._line(GAP)
        branch = self.y
        foreign = part.reads[0] if part.reads else None
        base = branch + GAP + (12 if foreign else 0)
        tops = []
        for n, (projection, x) in enumerate(zip((q, k, v), columns, strict=True)):
            own = n == 0 or foreign is None
            start = branch if own else branch + 12
            ends = [(x, start), (x, base)]
            self.paper.arrow(*([(self.x, start), *ends] if own and x != self.x else ends))
            if foreign and n:
                self.paper.arrow((columns[2], start), (columns[1], start), head=False)
            tops.append(self.paper.box(projection, x, base, NARROW))
        if foreign:
            right = columns[2] + NARROW / 2 + 40
            self.paper.arrow((right, branch + 12), (columns[2], branch + 12), head=False)
            self.paper.text(right + 4, branch + 12, " ".join(foreign), ink=QUIET, ha="left")
        top = max(tops)
        for n, norm in enumerate(before):
            self.paper.arrow((columns[n], top), (columns[n], top + GAP))
            tops[n] = self.paper.box(norm, columns[n], top + GAP, NARROW)
        level = max(tops) + GAP
        shapes = (q.gives, k.gives, v.gives)
        for n in (0, 1):
            self.paper.arrow((columns[n], tops[n]), (columns[n], level))
        for n, shape in enumerate(shapes):
            place = columns[n] + 4, tops[n] + GAP / 2
            self.paper.text(*place, shape, 6.5, QUIET, "left")
        middle = (columns[0] + columns[1]) / 2
        wide = 2 * NARROW + 8
        end = self.paper.box(weights, middle, level, wide)
        final = end + GAP
        self.paper.arrow((middle, end), (middle, final))
        self.paper.text(middle + 4, end + GAP / 2, weights.gives, 6.5, QUIET, "left")
        self.paper.arrow((columns[2], tops[2]), (columns[2], final))
        self.y = self.paper.box(product, self.x, final, 3 * NARROW + 16)
        self.told = ""
        self._tell(product.gives)
        self.draw(after)


def _split(parts: Sequence[Part]) -> tuple[list[Part], list[Part]]:
    norms = [part for part in parts if part.kind in ("norm", "module")]
    return norms, [part for part in parts if part not in norms]


def _attends(part: Part) -> bool:
    return any(each.kind == "attention" for each in part.walk())


def _alike(part: Part, rest: Iterable[Part]) -> Iterable[Part]:
    for other in rest:
        if not part.like(other):
            return
        yield other
