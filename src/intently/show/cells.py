"""Weights as shaded cells, with names or numbers beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from intently.show.labels import thinned
from intently.show.sheet import LINE, few_ticks, widths_of
from intently.show.style import ACCENT, FRAME, GRID, HATCH, HOLE, QUIET, ink_on, weight_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.image import AxesImage
    from matplotlib.patches import Rectangle

Link = tuple[int, int]

CROWDED = 4096


def limits(values: np.ndarray) -> tuple[float, float]:
    """Return the ends of the colour scale: 0, and 1, 0.5, 0.2, 0.1, … just above all weights.

    >>> limits(np.array([0.0, 0.37])), limits(np.array([0.51]))
    ((0.0, 0.5), (0.0, 1.0))
    """
    finite = values[np.isfinite(values)]
    highest = float(finite.max(initial=0.0))
    power = 10.0 ** math.floor(math.log10(highest)) if highest > 0 else 1.0
    steps = [round(step * power, 12) for step in (1, 2, 5, 10)]
    top = next((step for step in steps if highest <= step * (1 + 1e-6)), highest)
    return min(0.0, float(finite.min(initial=0.0))), top if highest > 0 else 1.0


def crowded_limits(values: np.ndarray) -> tuple[float, float]:
    """Return the `limits` of a large matrix: one positive weight in two hundred may lie above."""
    positive = values[np.isfinite(values) & (values > 0)]
    return limits(np.quantile(positive, [0.0, 0.995]) if positive.size > CROWDED else values)


def paint(
    axes: Axes,
    values: np.ndarray,
    shape: tuple[int, int],
    norm: Normalize,
    aspect: str = "equal",
    colours: Colormap | None = None,
) -> AxesImage:
    """Shade a (t, s) matrix, or its pooled picture, on axes that count its query and key steps.

    Non-finite values stay clear, and the hatched ground shows through.
    """
    t, s = shape
    image = axes.imshow(
        np.ma.masked_invalid(values),
        cmap=colours or weight_map(),
        norm=norm,
        aspect=aspect,  # pyright: ignore[reportArgumentType]
        interpolation="nearest",
        origin="upper",
        extent=(-0.5, s - 0.5, t - 0.5, -0.5),
        zorder=1,
    )
    if not np.isfinite(values).all():
        axes.add_patch(ground((-0.5, -0.5), s, t))
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


def rule(axes: Axes, shape: tuple[int, int]) -> None:
    """Draw thin lines between the cells."""
    t, s = shape
    axes.vlines(np.arange(1, s) - 0.5, -0.5, t - 0.5, colors=GRID, lw=0.5, zorder=1.5)
    axes.hlines(np.arange(1, t) - 0.5, -0.5, s - 0.5, colors=GRID, lw=0.5, zorder=1.5)


def name_columns(
    axes: Axes,
    labels: Sequence[str],
    room: float,
    size: float,
    turn: float,
    side: Literal["top", "bottom"] = "top",
) -> None:
    """Write as many column labels as have room above or below the axes, turned by ``turn``."""
    axes.xaxis.set_ticks_position(side)
    axes.xaxis.set_label_position(side)
    slanted: dict[str, Any] = {}
    if turn == 45:
        slanted = {"rotation_mode": "anchor", "ha": "left" if side == "top" else "right"}
    _name(axes.xaxis, labels, room, size, rotation=turn, **slanted)


def name_rows(axes: Axes, labels: Sequence[str], room: float, size: float) -> None:
    """Write row labels left of the axes, as many as have room."""
    _name(axes.yaxis, labels, room, size)


def _name(axis: Axis, labels: Sequence[str], room: float, size: float, **turned: Any) -> None:
    shown = thinned(len(labels), room)
    axis.set_ticks(shown, [labels[i] for i in shown], parse_math=False, **turned)
    axis.set_tick_params(length=2 if len(shown) < len(labels) else 0, labelsize=size, pad=3)


def count_steps(axes: Axes, side: Literal["x", "y"], n: int, size: float, most: int = 8) -> None:
    """Number the n steps above or left of the axes, at most about ``most`` of them."""
    axis = axes.xaxis if side == "x" else axes.yaxis
    if n == 1:
        axis.set_ticks([0])
    else:
        few_ticks(axis, most, integer=True)
    axis.set_tick_params(labelsize=size, pad=2)
    if side == "x":
        axes.xaxis.tick_top()


def write_numbers(
    axes: Axes, values: np.ndarray, size: float, norm: Normalize, colours: Colormap
) -> None:
    """Write its number into every finite cell, in an ink that reads on its shade."""
    places = 2 if np.abs(values[np.isfinite(values)]).max(initial=0.0) < 10 else 0
    faces: Any = colours(norm(values))
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            faint = abs(value) < 0.5 * 10.0**-places
            axes.text(
                j,
                i,
                "0" if faint else f"{value:.{places}f}".replace("-", "−"),
                size=size,
                color=QUIET if faint else ink_on(faces[i, j]),
                ha="center",
                va="center_baseline",
                parse_math=False,
                zorder=3,
                in_layout=False,
            )


def outline(axes: Axes, sure: Sequence[Link], possible: Sequence[Link]) -> None:
    """Outline the cells of links (column, row): sure ones solid, possible ones dashed."""
    from matplotlib.patches import Rectangle

    for links, dash, name in ((possible, (0, (3, 2)), "possible"), (sure, "solid", "sure")):
        for source, target in links:
            box = Rectangle(
                (source - 0.45, target - 0.45),
                0.9,
                0.9,
                fill=False,
                edgecolor=ACCENT,
                linestyle=dash,
                linewidth=1.6,
                label=name,
                zorder=2.5,
            )
            axes.add_patch(box)


@dataclass(frozen=True)
class Header:
    """The angle of the column labels above a matrix, and the room they take in inches."""

    turn: float
    height: float
    overhang: float


def header(labels: Sequence[str], cell: float, size: float, room: float) -> Header:
    """Choose upright, slanted or level column labels for cells ``cell`` inches wide."""
    shown = thinned(len(labels), room)
    widths = widths_of([labels[i] for i in shown], size)
    pad = 4 / 72
    if max(widths) <= 0.92 * cell:
        return Header(0, size * LINE + pad, 0.0)
    if cell < 0.2:
        return Header(90, max(widths) + 2 * pad, 0.0)
    ends = [(i + 0.5) * cell + 0.71 * (width + 0.1) for i, width in zip(shown, widths, strict=True)]
    slanted = 0.71 * (max(widths) + size / 72) + pad
    return Header(45, slanted, max(ends) - len(labels) * cell)
