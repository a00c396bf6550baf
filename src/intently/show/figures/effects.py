"""What edits do to a score: layers down, heads across, colours that part at zero."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from intently.errors import ArgumentError, KindError, build
from intently.show.cells import count_steps, name_rows, paint, rule
from intently.show.files import destination, finish
from intently.show.labels import titled, visible
from intently.show.sheet import LINE, WORD, Sheet, heading_of, width_of
from intently.show.style import signed_map, style

if TYPE_CHECKING:
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

MARGIN = 0.12
WIDE = 4.6
CELLS = (0.05, 0.32)
"""The least and the largest side of a cell, in inches."""
SIZE = 8.0
NAME = 9 * LINE + 0.04
NUMBERS = SIZE * LINE + 0.05
BAR = 0.95
LEAST_BAR = 1.2
PLACES = ("head", "key")
"""Columns that may run across, beside the layers."""


class Columns(Protocol):
    """The interface of a table of `intently.effects`."""

    @property
    def columns(self) -> Sequence[str]: ...
    def __getitem__(self, column: str, /) -> Sequence[Any]:
        """Return the values of a column."""
        ...


@dataclass(frozen=True)
class Panel:
    """The layers of one kind: their numbers, and a value for each place."""

    name: str
    rows: list[str]
    values: np.ndarray


def effects(
    table: Columns, *, title: str | None = None, save: str | os.PathLike[str] | None = None
) -> Figure:
    """Draw a table of `intently.effects`: layers down, heads (or keys) across.

    Blue cells are edits that raise the score, sand ones lower it, and zero is white; the scale has
    equal ends. Layers whose names differ only in numbers share a panel. Returns the figure, written
    to ``save``.

    Raises KindError for anything but a table with columns, ArgumentError for a table without the
    columns "layer" and "difference", or without rows, and an unknown suffix.

    >>> from intently.observe.measuring.table import Effects
    >>> rows = [{"layer": f"h.{n // 2}", "head": n % 2, "difference": n - 1.0} for n in range(4)]
    >>> panel, bar = effects(Effects(rows, ("layer", "head", "difference"))).axes
    >>> panel.images[0].get_clim()
    (-2.0, 2.0)
    """
    path = destination(save)
    across, panels = _read(table)
    heading = titled(title)
    texts = [text for panel in panels for text in (panel.name, *panel.rows)]
    with style((heading, *texts)):
        return finish(_draw(panels, across, heading), path)


def _read(table: Columns) -> tuple[str, list[Panel]]:
    """What runs across, and the panels."""
    columns = getattr(table, "columns", None)
    if columns is None or not hasattr(table, "__getitem__"):
        raise build(KindError, "table", "a table of intently.effects", type(table).__name__)
    if not {"layer", "difference"} <= set(columns):
        expected = "columns layer and difference"
        fix = "edits.each_head, each_layer and each_key give them"
        raise build(ArgumentError, "table", expected, ", ".join(columns), fix=fix)
    layers = [str(x) for x in table["layer"]]
    if not layers:
        raise build(ArgumentError, "table", "at least one row", "none")
    across = next((x for x in PLACES if x in columns), "")
    places = [int(x) for x in table[across]] if across else [0] * len(layers)
    kinds: dict[str, list[str]] = {}
    for layer in dict.fromkeys(layers):
        kinds.setdefault(re.sub(r"\.?\b\d+\b", "", layer).strip("."), []).append(layer)
    panels = []
    for kind, members in kinds.items():
        inside = [n for n, layer in enumerate(layers) if layer in members]
        values = np.full((len(members), 1 + max(places[n] for n in inside)), np.nan)
        for n in inside:
            values[members.index(layers[n]), places[n]] = float(table["difference"][n])
        rows = [".".join(re.findall(r"\b\d+\b", layer)) or visible(layer) for layer in members]
        panels.append(Panel(visible(kind, 60), rows, values))
    return across, panels


def _draw(panels: Sequence[Panel], across: str, heading: str) -> Figure:
    from matplotlib.colors import Normalize

    largest = max(float(np.nanmax(np.abs(panel.values), initial=0.0)) for panel in panels)
    norm: Normalize = Normalize(-(largest or 1.0), largest or 1.0)
    most = max(panel.values.shape[1] for panel in panels)
    cell = min(CELLS[1], max(CELLS[0], WIDE / most))
    left = MARGIN + 9 * LINE + 0.1 + width_of([row for x in panels for row in x.rows], SIZE)
    named = max(width_of([panel.name for panel in panels], 9), 0.8)
    wide = max(most * cell, named, 1.4)
    width = left + wide + BAR
    heading, tall = heading_of(heading, width - 2 * MARGIN)
    above = NAME + (NUMBERS + SIZE * LINE if across else 0.0)
    high = [max(len(panel.rows) * max(cell, SIZE * WORD), 0.6) for panel in panels]
    top = first = MARGIN + tall
    bar = max(high[0], LEAST_BAR)
    below = max(sum(high) + len(panels) * (above + 0.1), above + bar + 0.1)
    sheet = Sheet.of(width, top + below + MARGIN)
    for panel, height in zip(panels, high, strict=True):
        t, s = panel.values.shape
        sheet.write(left, top, panel.name, size=9)
        axes = sheet.axes(left, top + above, s * cell if across else 0.4, height)
        paint(axes, panel.values, (t, s), norm, "auto", signed_map())
        if cell >= 0.12:
            rule(axes, (t, s))
        name_rows(axes, panel.rows, height / (SIZE * WORD), SIZE)
        axes.set_ylabel("layer", parse_math=False)
        axes.xaxis.set_label_position("top")
        if across:
            count_steps(axes, "x", s, SIZE)
            axes.set_xlabel(across, parse_math=False)
        else:
            axes.set_xticks([])
        top += above + height + 0.1
    place = left + wide + 0.2, first + above, 0.11, bar
    sheet.colour_bar(place, norm, signed_map(), size=SIZE, label="difference", format="{x:.3g}")
    sheet.write(MARGIN, MARGIN, heading)
    return sheet.figure
