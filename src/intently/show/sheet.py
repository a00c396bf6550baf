"""The sheet of paper of a figure and the texts on it, measured in inches."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from intently.show.style import GRID

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

LINE = 1.35 / 72
"""Height of a line of text in inches for each point of its size."""
WORD = 1.05 / 72
"""Height that a label of one line needs beside others, in inches for each point of its size."""


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
        from matplotlib.figure import Figure

        return cls(Figure(figsize=(width, height)), width, height)

    def axes(self, left: float, top: float, width: float, height: float, **options: Any) -> Axes:
        """Return axes whose frame has this place and size."""
        box = (
            left / self.width,
            1 - (top + height) / self.height,
            width / self.width,
            height / self.height,
        )
        return self.figure.add_axes(box, **options)

    def colour_bar(
        self,
        place: tuple[float, float, float, float],
        drawn: ScalarMappable,
        frame: str | None = None,
        **options: Any,
    ) -> Axes:
        """Return the axes of a colour bar of what is drawn, in a thin frame of a colour or none."""
        bar = self.axes(*place)
        outline: Any = self.figure.colorbar(drawn, cax=bar, **options).outline
        outline.set(edgecolor=frame, linewidth=0.5, visible=frame is not None)
        return bar

    def write(self, left: float, top: float, text: str, **options: Any) -> None:
        """Write a text, taken as it is, whose top left corner stands at this place."""
        if not text:
            return
        options = {"ha": "left", "va": "top", "linespacing": 1.25, **options}
        self.figure.text(
            left / self.width, 1 - top / self.height, text, parse_math=False, **options
        )


def wrapped(text: str, width: float, size: float) -> str:
    """Return the text with line breaks such that it fits ``width`` inches at ``size`` points."""
    lines: list[str] = []
    for line in text.split("\n"):
        ratio = width / max(width_of([line], size), 1e-6)
        characters = max(8, math.floor(len(line) * ratio))
        lines += [line] if ratio >= 1 else textwrap.wrap(line, characters)
    return "\n".join(lines)


def height_of(text: str, size: float, pad: float = 0.0) -> float:
    """Return the height in inches of a text of one or more lines, padded; 0 for no text."""
    return (text.count("\n") + 1) * size * LINE + pad if text else 0.0


def open_axes(axes: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """Leave out the frame above and on the right, and the marks; draw a grid behind the curves."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color=GRID, lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=4)


def name_panel(axes: Axes, name: str, high: float) -> None:
    """Write the name of a panel, ``high`` inches high, above its left end."""
    axes.set_ylabel(name, rotation=0, ha="left", va="bottom", size=9, parse_math=False)
    axes.yaxis.set_label_coords(0, 1 + 0.05 / high)
