"""Renders shapes as pixels with matplotlib's renderer and fonts, without its slow figures."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from intently.show.animate.shapes import LARGE, Curve, Grid, Shade, Shape, Text
from intently.show.style import (
    ACCENT,
    FRAME,
    GRID,
    HATCH,
    HOLE,
    INK,
    LINES,
    QUIET,
    ink_on,
    signed_map,
    weight_map,
)

if TYPE_CHECKING:
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.path import Path

NAMED = {
    "ink": INK,
    "quiet": QUIET,
    "frame": FRAME,
    "grid": GRID,
    "accent": ACCENT,
    "blue": LINES[0],
}
HEIGHT = 0.36
"""Distance of a text's baseline below its middle, per pixel of its size."""

MANY = 48
"""Larger grids are painted as one picture, with hatched cells in grey."""

AHEAD = {"start": 0.0, "middle": 0.5, "end": 1.0}

RGBA = tuple[float, float, float, float]


@lru_cache(maxsize=4096)
def colour(shade: Shade) -> RGBA:
    """Return the colour of a shade."""
    if shade is None:
        return (1.0, 1.0, 1.0, 0.0)
    if shade != shade:
        return named(HOLE)
    return weight_map()(shade) if shade >= 0 else signed_map()(0.5 + shade / 2)


@lru_cache(maxsize=64)
def named(name: str) -> RGBA:
    """Return the colour of one of our names or of matplotlib's."""
    from matplotlib.colors import to_rgba

    return to_rgba(NAMED.get(name, name))


class Painter:
    """A white sheet of ``width`` × ``height`` pixels, magnified by ``scale``."""

    def __init__(self, width: float, height: float, scale: float) -> None:
        from matplotlib.backends.backend_agg import RendererAgg

        self.scale = scale
        self.high = round(height * scale)
        self.renderer: RendererAgg = RendererAgg(round(width * scale), self.high, 72 * scale)
        self.renderer.clear()
        self._box((0, 0, width, height), named("white"), "", 1.0)

    def pixels(self) -> np.ndarray:
        """Return the painted pixels (height, width, 3)."""
        return np.asarray(self.renderer.buffer_rgba())[..., :3].copy()

    def draw(self, shapes: Iterable[Shape], down: float = 0.0) -> None:
        """Draw shapes, moved ``down`` the sheet."""
        for shape in shapes:
            if shape.opacity <= 0:
                continue
            if isinstance(shape, Grid):
                self._grid(shape, down)
            elif isinstance(shape, Text):
                place, ink = (shape.x, shape.y + down), named(shape.colour)
                self._write(shape.text, place, shape.size, ink, shape.anchor, shape.opacity)
            else:
                self._curve(shape, down)

    # --- parts ----------------------------------------------------------------------------------

    def _grid(self, grid: Grid, down: float) -> None:
        wide, high = grid.cell
        rows, columns = len(grid.shades), len(grid.shades[0])
        top = grid.y + down
        lined = "grid" if min(wide, high) >= 5 and 1 < rows * columns <= LARGE else ""
        if rows * columns > MANY:
            self._image(grid, top)
            if lined:
                self._lines(grid, top)
        else:
            for i, row in enumerate(grid.shades):
                for j, shade in enumerate(row):
                    if shade is not None:
                        box = (grid.x + j * wide, top + i * high, wide, high)
                        self._box(box, colour(shade), lined, grid.opacity, shade != shade)
        if grid.edge:
            box = (grid.x, top, grid.width, grid.height)
            heavy = 2.0 if grid.edge == "accent" else 1.0
            self._box(box, colour(None), grid.edge, grid.opacity, width=heavy)
        for n, text in enumerate(grid.texts):
            i, j = divmod(n, columns)
            ink = ink_on(colour(grid.shades[i][j])) if grid.shades[i][j] is not None else INK
            x, y = grid.x + (j + 0.5) * wide, top + (i + 0.5) * high
            self._write(text, (x, y), grid.size, named(ink), "middle", grid.opacity)

    def _image(self, grid: Grid, top: float) -> None:
        faces = np.array([[colour(shade) for shade in row] for row in grid.shades])
        wide, high = (max(1, round(n * self.scale)) for n in (grid.width, grid.height))
        rows = np.arange(high) * len(faces) // high
        columns = np.arange(wide) * faces.shape[1] // wide
        picture = faces[rows][:, columns]
        picture[..., 3] *= grid.opacity
        left = round(grid.x * self.scale)
        bottom = self.high - round(top * self.scale) - high
        pixels = np.round(255 * picture[::-1]).astype(np.uint8)
        self.renderer.draw_image(self._context(), left, bottom, pixels)

    def _lines(self, grid: Grid, top: float) -> None:
        from matplotlib.path import Path

        right, bottom = grid.x + grid.width, top + grid.height
        points: list[tuple[float, float]] = []
        for j in range(1, len(grid.shades[0])):
            points += [(grid.x + j * grid.cell[0], y) for y in (top, bottom)]
        for i in range(1, len(grid.shades)):
            points += [(x, top + i * grid.cell[1]) for x in (grid.x, right)]
        path = Path(points, [Path.MOVETO, Path.LINETO] * (len(points) // 2))
        context = self._context(named("grid"), grid.opacity)
        context.set_snap(True)
        self.renderer.draw_path(context, path, self._transform(), None)

    def _curve(self, curve: Curve, down: float) -> None:
        from matplotlib.path import Path

        y, y2 = curve.y + down, curve.y2 + down
        first, last = (y, y2) if curve.rise else ((y + y2) / 2, (y + y2) / 2)
        points = [
            (curve.x, y),
            (curve.x, first - curve.rise),
            (curve.x2, last - curve.rise),
            (curve.x2, y2),
        ]
        path = Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
        context = self._context(colour(curve.shade), curve.opacity, curve.width)
        context.set_capstyle("butt")
        self.renderer.draw_path(context, path, self._transform(), None)

    def _box(
        self,
        box: tuple[float, float, float, float],
        face: RGBA,
        edge: str,
        opacity: float,
        hatched: bool = False,
        width: float = 1.0,
    ) -> None:
        context = self._context(named(edge) if edge else None, opacity, width if edge else 0.0)
        context.set_snap(True)
        if hatched:
            context.set_hatch("////")
            context.set_hatch_color(named(HATCH))
            context.set_hatch_linewidth(0.7)
        filled = (*face[:3], face[3] * opacity)
        self.renderer.draw_path(context, _rectangle(*box), self._transform(), filled)

    def _write(
        self,
        text: str,
        place: tuple[float, float],
        size: float,
        ink: RGBA,
        anchor: str,
        opacity: float,
    ) -> None:
        if not text:
            return
        mask, base = _written(text, size, self.scale)
        left = self.scale * place[0] - mask.shape[1] * AHEAD[anchor]
        down = round(self.scale * (place[1] + HEIGHT * size)) - base
        pixels = np.empty((*mask.shape, 4), np.uint8)
        pixels[..., :3] = [round(255 * part) for part in ink[:3]]
        pixels[..., 3] = np.round(mask * min(opacity, 1.0))
        high = len(mask)
        self.renderer.draw_image(
            self._context(), round(left), self.high - down - high, pixels[::-1]
        )

    def _context(self, ink: RGBA | None = None, opacity: float = 1.0, width: float = 1.0) -> Any:
        context = self.renderer.new_gc()
        context.set_linewidth(width * self.scale)
        if ink is not None:
            context.set_foreground((*ink[:3], ink[3] * opacity), isRGBA=True)
        return context

    def _transform(self) -> Any:
        from matplotlib.transforms import Affine2D

        return Affine2D().scale(self.scale, -self.scale).translate(0, self.high)


def _rectangle(x: float, y: float, width: float, height: float) -> Path:
    from matplotlib.path import Path

    corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height), (x, y)]
    return Path(corners, closed=True)


@lru_cache(maxsize=8192)
def _drawn(text: str, size: float, scale: float, family: tuple[str, ...]) -> tuple[np.ndarray, int]:
    """Return the coverage (height, width) of a text, 0 … 255, and the row of its baseline.

    Cached: a frame repeats most words of the last one, and text layout takes most of the time.
    """
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    font = FontProperties(size=size, family=list(family))
    wide, high, below = RendererAgg(1, 1, 72 * scale).get_text_width_height_descent(
        text, font, ismath=False
    )
    around = int(2 * scale)
    width, base = int(np.ceil(wide)) + 1, int(np.ceil(high - below)) + around
    renderer = RendererAgg(width, base + int(np.ceil(below)) + around, 72 * scale)
    renderer.clear()
    renderer.draw_text(renderer.new_gc(), 0, base, text, font, 0)
    return np.asarray(renderer.buffer_rgba())[..., 3].copy(), base


def _written(text: str, size: float, scale: float) -> tuple[np.ndarray, int]:
    from matplotlib import rcParams

    return _drawn(text, round(size, 1), scale, tuple(rcParams["font.family"]))
