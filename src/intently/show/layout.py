"""The layout of figures: panels of a size in inches, what stands around them, and the file.

matplotlib measures what stands around each panel (`Axes.get_tightbbox`), once. Its constrained
layout measures everything twice, takes twice the time, and needs the size of the figure before.
"""

from __future__ import annotations

import io
import math
import os
import textwrap
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from intently.foundation import files
from intently.show.style import GRID, INK, QUIET, dress, on_dark, weight_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure

LINE = 1.35 / 72
"""Height of a line of text in inches for each point of its size."""
HEADING, NOTES = 10.5, 7.5
"""Sizes of the heading of a figure and of the notes below it, in points."""
MARGIN, NARROWEST = 0.13, 3.0
"""Inches around everything, and of the narrowest figure."""
BENCH = 10.0
"""Inches of the square on which panels are drawn before they are laid out."""

METADATA: dict[str, dict[str, None]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}

SUBSTITUTES = b"'DejaVu Sans', Verdana, sans-serif"
"""Fonts of nearly the same widths, for readers of an SVG who do not have the first."""


def destination(save: str | os.PathLike[str] | None) -> Path | None:
    """Return the path to save to; call it before drawing. Raises what
    `intently.foundation.files.destination` raises.
    """
    return None if save is None else files.destination(save, "save", METADATA, "picture")


class Layout:
    """A figure of panels in rows and columns, with a heading above and notes below them."""

    def __init__(self, across: float = 0.12, down: float = 0.1) -> None:
        from intently.show.drawing import Drawing

        self.figure = Drawing(figsize=(BENCH, BENCH))
        self.gaps = across, down
        self.places: dict[Axes, tuple[int, int]] = {}
        self.bars: dict[Axes, float] = {}
        self.bare: set[Axes] = set()

    def panel(
        self, row: int, column: int, width: float, height: float, measured: bool = True
    ) -> Axes:
        """Return axes of this size in inches, in the top left corner of a place of the grid.

        Of many panels those inside need not be ``measured``: others tell what stands around them.
        """
        axes = self.figure.add_axes((0, 0, width / BENCH, height / BENCH))
        self.places[axes] = row, column
        if not measured:
            self.bare.add(axes)
        return axes

    def blank(self, row: int, column: int, width: float, height: float) -> Axes:
        """Return a panel without a frame that counts inches from its top left corner."""
        axes = self.panel(row, column, 1, 1)
        axes.set_axis_off()
        self.reshape(axes, (0, width), (height, 0))
        return axes

    def reshape(
        self, axes: Axes, across: tuple[float, float], down: tuple[float, float], unit: float = 1.0
    ) -> None:
        """Give a panel these limits, and ``unit`` inches for each step of them."""
        axes.set(xlim=across, ylim=down)
        wide, high = (unit * abs(end - start) / BENCH for start, end in (across, down))
        axes.set_position((0, 0, wide, high))

    def colour_bar(
        self,
        place: tuple[int, int],
        high: float,
        norm: Normalize,
        label: str,
        colours: Colormap | None = None,
        frame: str | None = None,
        **options: Any,
    ) -> None:
        """Draw a colour bar, by default of weights, in a frame of this colour or in none."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import LogNorm

        axes = self.panel(*place, 0.11, high)
        self.bars[axes] = high
        bar: Any = self.figure.colorbar(
            ScalarMappable(norm, colours or weight_map()), cax=axes, label=label, **options
        )
        bar.outline.set(edgecolor=frame, linewidth=0.5, visible=frame is not None)
        if not isinstance(norm, LogNorm):
            few_ticks(axes.yaxis, 5 if high > 1 else 3)
            axes.yaxis.set_major_formatter("{x:.3g}")

    def finish(self, heading: str, notes: str, path: Path | None, description: str = "") -> Figure:
        """Lay the figure out, and write it if a path is given.

        ``description`` is what an SVG says to readers who do not see it, besides its heading. The
        picture is complete before the file is opened: an error never destroys an older picture.
        """
        figure = self.figure
        self._lay(heading, notes)
        if on_dark():
            dress(figure)
        if path is not None:
            suffix = path.suffix.lower()
            buffer = io.BytesIO()
            title = {"Title": heading.replace("\n", " ")} if heading else {}
            figure.savefig(buffer, format=suffix[1:], metadata={**METADATA[suffix], **title})
            content = buffer.getvalue()
            if suffix == ".svg":
                content = content.replace(b"'DejaVu Sans'", SUBSTITUTES)
                words = f"<desc>{escape(description)}</desc>\n ".encode() if description else b""
                content = content.replace(b"<metadata>", words + b"<metadata>", 1)
            files.make_folder(path.parent)
            files.replace_file(path, content)
        return figure

    def _lay(self, heading: str, notes: str) -> None:
        """Put the panels in their places, write the texts, and give the figure its size."""
        (width, lefts), (high, tops) = self._sides()
        for bar, height in self.bars.items():  # which may reach beyond its row
            high = max(high, tops[self.places[bar][0]] + height)
        width = max(width, NARROWEST - 2 * MARGIN)
        heading, notes = wrapped(heading, width, HEADING), wrapped(notes, width, NOTES)
        above = MARGIN + height_of(heading, HEADING) + (0.06 if heading else 0.0)
        foot = above + high + (0.08 if notes else 0.0)
        whole = width + 2 * MARGIN, foot + height_of(notes, NOTES) + MARGIN
        self.figure.set_size_inches(whole)
        for axes, (row, column) in self.places.items():
            box = axes.get_position()
            wide, tall = box.width * BENCH, box.height * BENCH
            left, top = MARGIN + lefts[column], above + tops[row]
            box = left / whole[0], 1 - (top + tall) / whole[1], wide / whole[0], tall / whole[1]
            axes.set_position(box)
        look: dict[str, Any] = {"va": "top", "linespacing": 1.25, "parse_math": False}
        for text, top, size, ink in ((heading, MARGIN, HEADING, INK), (notes, foot, NOTES, QUIET)):
            if text:
                place = MARGIN / whole[0], 1 - top / whole[1]
                self.figure.text(*place, text, size=size, color=ink, **look)

    def _sides(self) -> list[tuple[float, dict[int, float]]]:
        """Return the width of all columns and where each begins; the same of the rows."""
        columns: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        rows: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for axes, (row, column) in self.places.items():
            box = outer = axes.get_window_extent()
            if axes not in self.bare:
                outer = axes.get_tightbbox() or box
            for sizes, at, before, after in (
                (columns, column, box.x0 - outer.x0, outer.x1 - box.x0),
                (rows, row, outer.y1 - box.y1, box.y1 - outer.y0),
            ):
                if axes not in self.bars or sizes is columns:
                    sizes[at] = [max(sizes[at][0], before), max(sizes[at][1], after)]
        sides = []
        for sizes, gap in zip((columns, rows), self.gaps):
            end, starts = -gap, {}
            for at in sorted(sizes):
                before, after = (pixels / self.figure.dpi for pixels in sizes[at])
                starts[at] = end + gap + before
                end = starts[at] + after
            sides.append((end, starts))
        return sides


def width_of(texts: Iterable[str], size: float) -> float:
    """Return the width in inches of the widest text at ``size`` points."""
    return max(widths_of(texts, size), default=0.0)


def widths_of(texts: Iterable[str], size: float) -> list[float]:
    """Return the width in inches of every text at ``size`` points, with the style's fonts."""
    from matplotlib import rcParams

    family = tuple(rcParams["font.family"])
    return [_measured(text, size, family) for text in texts]


@lru_cache(maxsize=8192)
def _measured(text: str, size: float, family: tuple[str, ...]) -> float:
    """Return the width of a text in inches, cached, as words repeat."""
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    font = FontProperties(size=size, family=list(family))
    renderer = RendererAgg(1, 1, 72)
    return renderer.get_text_width_height_descent(text, font, ismath=False)[0] / 72


def wrapped(text: str, width: float, size: float) -> str:
    """Return the text with line breaks such that it fits ``width`` inches at ``size`` points."""
    lines: list[str] = []
    for line in text.split("\n"):
        ratio = width / max(width_of([line], size), 1e-6)
        characters = max(8, math.floor(len(line) * ratio))
        lines += [line] if ratio >= 1 else textwrap.wrap(line, characters)
    return "\n".join(lines)


def height_of(text: str, size: float) -> float:
    """Return the height in inches of a text of one or more lines; 0 for no text."""
    return (text.count("\n") + 1) * size * LINE if text else 0.0


def open_axes(axes: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """Remove the top and right frame and the ticks; draw a grid behind the curves."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color=GRID, lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=4)


def few_ticks(axis: Axis, most: int, **options: Any) -> None:
    """Put at most about ``most`` ticks on an axis, at round numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10], **options))
