"""The sheet of paper of a figure and the texts on it, measured in inches."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from intently.show.style import GRID, INK, QUIET, weight_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure

LINE = 1.35 / 72
"""Height of a line of text in inches for each point of its size."""
WORD = 1.05 / 72
"""Height that a label of one line needs beside others, in inches for each point of its size."""
HEADING, NOTES = 10.5, 7.5
"""Sizes of the heading of a figure and of the notes below it, in points."""
HEAD: dict[str, Any] = {"size": HEADING, "ha": "left", "va": "top", "linespacing": 1.25}


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


@dataclass(frozen=True)
class Sheet:
    """A figure of ``width`` × ``height`` inches on which places are measured from the top left."""

    figure: Figure
    width: float
    height: float

    @classmethod
    def of(cls, width: float, height: float) -> Sheet:
        """Return an empty sheet of this size."""
        from intently.show.drawing import Drawing

        return cls(Drawing(figsize=(width, height)), width, height)

    def axes(self, left: float, top: float, width: float, height: float, **options: Any) -> Axes:
        """Return axes whose frame has this place and size."""
        box = (
            left / self.width,
            1 - (top + height) / self.height,
            width / self.width,
            height / self.height,
        )
        return self.figure.add_axes(box, **options)

    def blank(self, left: float, top: float, width: float, height: float) -> Axes:
        """Return axes without a frame that count inches from their top left corner."""
        axes = self.axes(left, top, width, height)
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        return axes

    def colour_bar(
        self,
        place: tuple[float, float, float, float],
        norm: Normalize,
        colours: Colormap | None = None,
        frame: str | None = None,
        size: float | None = None,
        **options: Any,
    ) -> Axes:
        """Return the axes of a colour bar, by default of weights, in a thin frame or in none.

        ``frame`` is the frame's colour, ``size`` that of the numbers.
        """
        from matplotlib.cm import ScalarMappable

        bar = self.axes(*place)
        drawn = ScalarMappable(norm, colours or weight_map())
        outline: Any = self.figure.colorbar(drawn, cax=bar, **options).outline
        outline.set(edgecolor=frame, linewidth=0.5, visible=frame is not None)
        if size is not None:
            bar.tick_params(labelsize=size)
        return bar

    def write(self, left: float, top: float, text: str, **options: Any) -> None:
        """Write a text, by default a heading, with its top left corner at this place."""
        if text:
            place = left / self.width, 1 - top / self.height
            self.figure.text(*place, text, parse_math=False, **{**HEAD, **options})

    def note(self, left: float, top: float, text: str) -> None:
        """Write a note, small and grey, with its top left corner at this place."""
        self.write(left, top, text, size=NOTES, color=QUIET)


def constrained(width: float, height: float, heading: str, foot: str = "") -> Figure:
    """Return a figure that matplotlib lays out, with a heading above and notes below its axes."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from intently.show.drawing import Drawing

    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.05, wspace=0.0, hspace=0.0)
    figure = Drawing(figsize=(width, height), layout=layout)
    at = 0.12 / width
    if heading:
        figure.suptitle(heading, x=at, ha="left", size=HEADING, linespacing=1.25, parse_math=False)
    if foot:
        look: dict[str, Any] = {"size": NOTES, "color": QUIET, "parse_math": False}
        figure.supxlabel(foot, x=at, ha="left", **look)
    return figure


def wrapped(text: str, width: float, size: float) -> str:
    """Return the text with line breaks such that it fits ``width`` inches at ``size`` points."""
    lines: list[str] = []
    for line in text.split("\n"):
        ratio = width / max(width_of([line], size), 1e-6)
        characters = max(8, math.floor(len(line) * ratio))
        lines += [line] if ratio >= 1 else textwrap.wrap(line, characters)
    return "\n".join(lines)


def heading_of(text: str, width: float) -> tuple[str, float]:
    """Return a heading wrapped to ``width`` inches, and its height in inches."""
    heading = wrapped(text, width, HEADING)
    return heading, height_of(heading, HEADING)


def captions(texts: tuple[str, str], width: float) -> tuple[str, str]:
    """Return a heading and the notes below a figure, wrapped to ``width`` inches."""
    return wrapped(texts[0], width, HEADING), wrapped(texts[1], width, NOTES)


def height_of(text: str, size: float, pad: float = 0.0) -> float:
    """Return the height in inches of a text of one or more lines, padded; 0 for no text."""
    return (text.count("\n") + 1) * size * LINE + pad if text else 0.0


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


def broken(
    widths: Sequence[float], gaps: Sequence[float], room: float, mirrored: bool
) -> list[list[tuple[int, float]]]:
    """Break boxes of these widths into lines: the number and the left end of each box.

    Each box has its gap before it, except at the start of a line; ``mirrored`` lines run from the
    right.

    >>> broken([1, 2, 2], [0, 0.5, 0.5], 4, False)
    [[(0, 0.0), (1, 1.5)], [(2, 0.0)]]
    """
    rows: list[list[tuple[int, float]]] = [[]]
    end = 0.0
    for n, (width, gap) in enumerate(zip(widths, gaps, strict=True)):
        left = end + gap if rows[-1] else 0.0
        if rows[-1] and left + width > room:
            rows.append([])
            left = 0.0
        rows[-1].append((n, left))
        end = left + width
    if mirrored:
        return [[(n, room - left - widths[n]) for n, left in row] for row in rows]
    return rows


def boxed(
    axes: Axes,
    text: str,
    box: tuple[float, float, float, float],
    size: float,
    ink: str = INK,
    **look: Any,
) -> None:
    """Write a text into the middle of a rounded box (left, top, width, height) of some look."""
    from matplotlib.patches import FancyBboxPatch

    left, top, wide, high = box
    shape = "round,pad=0,rounding_size=0.03"
    patch = FancyBboxPatch((left, top), wide, high, boxstyle=shape, clip_on=False, **look)
    axes.add_artist(patch)  # as add_patch, without asking how far each box reaches
    axes.text(
        left + wide / 2,
        top + high / 2,
        text,
        size=size,
        color=ink,
        ha="center",
        va="center_baseline",
        parse_math=False,
        zorder=3,
    )
