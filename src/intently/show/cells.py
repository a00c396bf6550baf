"""Weights as shaded cells, with names or numbers beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from intently.show.labels import thinned
from intently.show.layout import few_ticks, width_of
from intently.show.style import ACCENT, FRAME, GRID, HATCH, HOLE, QUIET, ink_on, weight_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.image import AxesImage
    from matplotlib.patches import Rectangle

Link = tuple[int, int]

CROWDED = 4096
WORD = 1.05 / 72
"""Height that a label of one line needs beside others, in inches for each point of its size."""


def limits(values: np.ndarray) -> tuple[float, float]:
    """Return the ends of the colour scale: 0, and 1, 0.5, 0.2, 0.1, … just above all weights.

    >>> limits(np.array([0.0, 0.37])), limits(np.array([0.51]))
    ((0.0, 0.5), (0.0, 1.0))
    """
    top, lowest = highest(values), -highest(-values)
    power = 10.0 ** math.floor(math.log10(top)) if top > 0 else 1.0
    steps = [round(step * power, 12) for step in (1, 2, 5, 10)]
    end = next((step for step in steps if top <= step * (1 + 1e-6)), top)
    return min(0.0, lowest), end if top > 0 else 1.0


def highest(values: np.ndarray) -> float:
    """Return the largest finite number above 0; 0 if there is none."""
    return float(values[np.isfinite(values)].max(initial=0.0))


def crowded_limits(values: np.ndarray) -> tuple[float, float]:
    """Return the `limits` of a large matrix: one positive weight in two hundred may lie above."""
    positive = values[np.isfinite(values) & (values > 0)]
    return limits(np.quantile(positive, [0.0, 0.995]) if positive.size > CROWDED else values)


def paint(
    axes: Axes,
    values: np.ndarray,
    shape: tuple[int, int],
    norm: Normalize,
    colours: Colormap | None = None,
    ruled: bool = False,
) -> AxesImage:
    """Shade a (t, s) matrix, or its pooled picture, on axes that count its query and key steps.

    Non-finite values stay clear, and the hatched ground shows through; thin lines between the cells
    where they are ``ruled``.
    """
    t, s = shape
    image = axes.imshow(
        np.ma.masked_invalid(values),
        cmap=colours or weight_map(),
        norm=norm,
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, s - 0.5, t - 0.5, -0.5),
        zorder=1,
    )
    if not np.isfinite(values).all():
        axes.add_patch(ground((-0.5, -0.5), s, t))
    if ruled:
        axes.vlines(np.arange(1, s) - 0.5, -0.5, t - 0.5, colors=GRID, lw=0.5, zorder=1.5)
        axes.hlines(np.arange(1, t) - 0.5, -0.5, s - 0.5, colors=GRID, lw=0.5, zorder=1.5)
    axes.spines[:].set_color(FRAME)
    return image


def ground(
    corner: tuple[float, float], width: float, height: float, zorder: float = 0.5
) -> Rectangle:
    """Return the hatched ground behind cells without a weight."""
    from matplotlib.patches import Rectangle

    return Rectangle(
        corner, width, height, facecolor=HOLE, edgecolor=HATCH, hatch="////", lw=0, zorder=zorder
    )


def name_steps(
    axes: Axes,
    side: Literal["top", "left", "bottom"],
    names: Sequence[str] | int,
    length: float,
    size: float,
) -> None:
    """Write as many names beside the steps of a side as its length in inches has room for.

    Names of columns stand level, slanted or upright, as they fit. Steps without names are counted.
    """
    across = side != "left"
    axis = axes.xaxis if across else axes.yaxis
    if side != "left":
        axes.xaxis.set_ticks_position(side)
        axes.xaxis.set_label_position(side)
    if isinstance(names, int):
        if names == 1:
            axis.set_ticks([0])
        else:
            few_ticks(axis, min(names, 8 if length > 2 else 6), integer=True)
        axis.set_tick_params(labelsize=size, pad=2)
        return
    shown = thinned(len(names), length / (size * WORD))
    turned: dict[str, Any] = {}
    cell = length / len(names)
    if across and width_of((names[i] for i in shown), size) > 0.92 * cell:
        turned = {"rotation": 90}
        if cell >= 0.2:
            ha = "left" if side == "top" else "right"
            turned = {"rotation": 45, "rotation_mode": "anchor", "ha": ha}
    axis.set_ticks(shown, [names[i] for i in shown], parse_math=False, **turned)
    axis.set_tick_params(length=2 if len(shown) < len(names) else 0, labelsize=size, pad=3)


def write_numbers(
    axes: Axes, values: np.ndarray, size: float, norm: Normalize, colours: Colormap
) -> None:
    """Write its number into every finite cell, in an ink that reads on its shade.

    Numbers too small or too large for a cell are left to the colour bar.
    """
    top = highest(np.abs(values))
    if top and not 0.05 <= top < 1e5:
        return
    places = 2 if top < 10 else 0
    faces: Any = colours(norm(values))
    look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "zorder": 3}
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            faint = abs(value) < 0.5 * 10.0**-places
            number = "0" if faint else f"{value:.{places}f}".replace("-", "−")
            ink = QUIET if faint else ink_on(faces[i, j])
            axes.text(j, i, number, size=size, color=ink, parse_math=False, in_layout=False, **look)


def outline(axes: Axes, sure: Sequence[Link], possible: Sequence[Link]) -> None:
    """Outline the cells of links (column, row): sure ones solid, possible ones dashed."""
    from matplotlib.patches import Rectangle

    for links, dash, name in ((possible, (0, (3, 2)), "possible"), (sure, "solid", "sure")):
        look: dict[str, Any] = {"fill": False, "edgecolor": ACCENT, "linewidth": 1.6}
        for source, target in links:
            corner = source - 0.45, target - 0.45
            box = Rectangle(corner, 0.9, 0.9, linestyle=dash, label=name, zorder=2.5, **look)
            axes.add_patch(box)
