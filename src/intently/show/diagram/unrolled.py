"""A recurrent encoder–decoder, unrolled: words from the left to the right, attention between."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from intently.foundation.parts import Part
from intently.show.diagram.paper import LINE, TITLE, Paper, box_height
from intently.show.style import LINES, QUIET, WEIGHTS

SOURCE, TARGET = ("1", "2", "…", "s"), ("1", "2", "…", "t")
CELL, HIGH = 34.0, 24.0
"""Width and height of the cell of one step."""
NEAR, FAR = 54.0, 78.0
"""Distances of the steps of the encoder and of the decoder."""
UP = 22.0
"""Distance between rows."""
BRIDGE, BETWEEN = 112.0, 30.0
ALONG = 5.0
"""Half of the distance between two lines side by side."""


class Row(NamedTuple):
    """The places of the steps, and the bottom of their cells."""

    xs: list[float]
    y: float


def unrolled(paper: Paper, encoder: Part, decoder: Part) -> None:
    """Draw the encoder on the left, the decoder on the right, one step of attention between."""
    named = {part.name: part for part in decoder.parts}
    attention = named.get("attention")
    cells = [part for part in decoder.parts if part.kind == "cell"]
    *_, join, output = decoder.parts
    embedding, bridge = decoder.parts[0], named["bridge"]
    left = [NEAR * n for n in range(len(SOURCE))]
    start = left[-1] + CELL / 2 + BETWEEN
    first = start + BRIDGE + BETWEEN + CELL / 2
    right = [first + FAR * n for n in range(len(TARGET))]

    bottom = _words(paper, left, encoder.parts[0], "source")
    read = _cells(paper, left, bottom, encoder.parts[1:], SOURCE, -1)
    bottom = _words(paper, right, embedding, "target")
    written = _cells(paper, right, bottom, cells, TARGET, 1)

    middle = min(read.y, written.y) + HIGH / 2
    paper.arrow((left[-1] + CELL / 2, middle), (start, middle))
    paper.box(bridge, start + BRIDGE / 2, middle - box_height(bridge, BRIDGE) / 2, BRIDGE)
    paper.arrow((start + BRIDGE, middle), (right[0] - CELL / 2, middle))

    level = max(read.y, written.y) + HIGH + 2.2 * UP
    edge, high = _look(paper, left, read, start + BRIDGE, level, attention, encoder)
    top = level + max(high, HIGH) + UP
    wide = right[-1] - right[0] + FAR
    centre = (right[0] + right[-1]) / 2
    for x in right:
        paper.arrow((x, written.y + HIGH), (x, top))
    end = paper.box(join, centre, top, wide)
    feeding = cells[0].takes != embedding.gives
    heights = level + high / 2 - 7, level + high / 2 + 7
    if join.name == "decoder.vector":
        _after(paper, right, written, edge, heights, top, feeding)
    else:
        asks = attention is not None
        _before(paper, right, written, edge, heights, (top, bottom), (asks, feeding))
    paper.arrow((centre, end), (centre, end + UP))
    paper.text(centre + 5, end + UP / 2, join.gives, ink=QUIET, ha="left")
    end = paper.box(output, centre, end + UP, wide)
    paper.arrow((centre, end), (centre, end + UP))
    paper.text(centre, end + UP + 6, f"logits {output.gives}", ink=QUIET)


def _words(paper: Paper, xs: Sequence[float], embedding: Part, name: str) -> float:
    """The ids, and one box that embeds the words of all steps; return its top."""
    centre, wide = (xs[0] + xs[-1]) / 2, xs[-1] - xs[0] + CELL + 8
    paper.text(centre, -UP - 6, f"{name} {embedding.takes}", ink=QUIET)
    paper.arrow((centre, -UP), (centre, 0))
    top = paper.box(embedding, centre, 0, wide)
    paper.text(xs[1] + 5, top + UP / 2, embedding.gives, ink=QUIET, ha="left")
    return top


def _cells(
    paper: Paper,
    xs: Sequence[float],
    bottom: float,
    layers: Sequence[Part],
    names: Sequence[str],
    side: int,
) -> Row:
    """A row of cells for each layer; return the top one."""
    y = bottom
    for part in layers:
        for x in xs:
            paper.arrow((x, y), (x, y + UP))
        y += UP
        both = "both directions" in part.notes
        for x, after in pairwise(xs):
            ends = (x + CELL / 2, after - CELL / 2)
            up = ALONG if both else 0
            paper.arrow((ends[0], y + HIGH / 2 + up), (ends[1], y + HIGH / 2 + up))
            if both:
                paper.arrow((ends[1], y + HIGH / 2 - up), (ends[0], y + HIGH / 2 - up))
        for x, name in zip(xs, names, strict=True):
            if name == "…":
                paper.text(x, y + HIGH / 2, name, 12)
            else:
                paper.rectangle(x - CELL / 2, y, CELL, HIGH, WEIGHTS[3])
                paper.text(x, y + HIGH / 2, name, TITLE)
        _caption(paper, (xs[0] if side < 0 else xs[-1]) + side * (CELL / 2 + 9), y, part, side)
        y += HIGH
    return Row(list(xs), y - HIGH)


def _caption(paper: Paper, x: float, y: float, part: Part, side: int) -> None:
    """The name of the cells of a row beside them."""
    lines = [part.title, *part.notes, f"{part.total:,}"]
    ha = "left" if side > 0 else "right"
    high = y + HIGH / 2 + LINE * (len(lines) - 1) / 2
    for n, line in enumerate(lines):
        paper.text(x, high - LINE * n, line, TITLE if n == 0 else 7.0, ha=ha)


def _look(
    paper: Paper,
    xs: Sequence[float],
    row: Row,
    right: float,
    level: float,
    attention: Part | None,
    encoder: Part,
) -> tuple[float, float]:
    """Attention over all states, or the last state alone; return its right edge and height."""
    y = row.y + HIGH
    if attention is None:
        middle = level + HIGH / 2 + 7
        paper.arrow((xs[-1], y), (xs[-1], middle), (right, middle), ink=LINES[0], head=False)
        paper.text(xs[-1] + 9, middle + 7, "context: the last state", ink=LINES[0], ha="left")
        return right, HIGH
    left = xs[0] - CELL / 2 - 4
    for x in xs:
        paper.arrow((x, y), (x, level), ink=LINES[0])
    paper.text(xs[1] + 5, (y + level) / 2, encoder.gives, ink=QUIET, ha="left")
    edge = right - BRIDGE / 2
    top = paper.box(attention, (left + edge) / 2, level, edge - left)
    return edge, top - level


def _before(
    paper: Paper,
    xs: Sequence[float],
    row: Row,
    edge: float,
    heights: tuple[float, float],
    ends: tuple[float, float],
    does: tuple[bool, bool],
) -> None:
    """The state before step 2 asks; the context enters its cell and its output."""
    low, high = heights
    top, bottom = ends
    asks, feeding = does
    gap = (xs[0] + xs[1]) / 2
    if asks:
        state = gap - ALONG, row.y + HIGH / 2
        paper.arrow(state, (state[0], low), (edge, low))
        paper.text(edge + 6, low - 7, "query", ink=QUIET, ha="left")
        paper.text(edge + 6, high + 7, "context", ink=LINES[0], ha="left")
    down = gap + ALONG
    paper.arrow((edge, high), (down, high), (down, top), ink=LINES[0], lw=1.1)
    if feeding:
        below = bottom + UP / 2 - 3
        x = xs[1] - CELL / 4
        points = (down, high), (down, below), (x, below), (x, row.y)
        paper.arrow(*points, ink=LINES[0], lw=1.1)


def _after(
    paper: Paper,
    xs: Sequence[float],
    row: Row,
    edge: float,
    heights: tuple[float, float],
    top: float,
    feeding: bool,
) -> None:
    """The state of step 2 asks; the context joins it, and the next step reads the result."""
    low, high = heights
    paper.arrow((xs[1], low), (edge, low))
    paper.text(edge + 6, low - 7, "query", ink=QUIET, ha="left")
    x = xs[1] - 2.5 * ALONG
    paper.arrow((edge, high), (x, high), (x, top), ink=LINES[0], lw=1.1)
    paper.text(edge + 6, high + 7, "context", ink=LINES[0], ha="left")
    if feeding:
        gap = xs[1] + FAR / 2
        below = row.y - UP / 2 - 3
        end = xs[2] - CELL / 4
        paper.arrow((gap, top), (gap, below), (end, below), (end, row.y))
        paper.text(gap + 5, (row.y + HIGH + top) / 2, "input\nfeeding", ink=QUIET, ha="left")
