"""A story as a GIF: title and caption above, the scene, and a progress bar below.

All frames share one palette: the shades of our two colour scales, greys, and vermilion. So frames
do not flicker, and equal stories give equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from intently.show.animate.painting import Painter, colour, named
from intently.show.animate.shapes import Grid, Scene, Shape, Text
from intently.show.animate.stage import MARGIN
from intently.show.animate.tween import between
from intently.show.pictures import encoded as encoded_image
from intently.show.sheet import wrapped
from intently.show.style import light

SCALE = 1.25
BETWEEN, STEP = 6, 50
"""Frames between two scenes, and the duration of each in milliseconds."""
QUICK = 3
"""Frames between two scenes before a short one."""
TITLE, SAID = 15.0, 12.0
LINE = 1.4


def frames(
    title: str, scenes: Sequence[Scene], size: tuple[float, float]
) -> list[tuple[np.ndarray, int]]:
    """Return every frame (height, width, 3) with its duration in milliseconds."""
    with light(_written(title, scenes)):
        sheet = _Sheet(title, scenes, size)
        found = []
        for n, scene in enumerate(scenes):
            if n:
                steps = BETWEEN if scene.hold >= 1.5 else QUICK
                for step in range(1, steps):
                    shapes = between(scenes[n - 1], scene, step / steps)
                    found.append((sheet.painted(shapes, n), STEP))
            found.append((sheet.painted(scene.shapes, n), round(100 * scene.hold) * 10))
        return found


def still(title: str, scenes: Sequence[Scene], size: tuple[float, float], n: int) -> np.ndarray:
    """Return one scene as a picture (height, width, 3)."""
    with light(_written(title, scenes)):
        return _Sheet(title, scenes, size).painted(scenes[n].shapes, n)


def encoded(pictures: Sequence[tuple[np.ndarray, int]]) -> bytes:
    """Return frames as one GIF that repeats."""
    from PIL import Image

    palette, table = _palette(), np.zeros(2**24, np.uint8)
    first, *others = [Image.fromarray(_reduced(pixels, palette, table)) for pixels, _ in pictures]
    for image in (first, *others):
        image.putpalette(palette.ravel().tolist())
    return encoded_image(
        first,
        format="GIF",
        save_all=True,
        append_images=others,
        loop=0,
        optimize=False,
        duration=[milliseconds for _, milliseconds in pictures],
        disposal=1,
    )


def _written(title: str, scenes: Sequence[Scene]) -> set[str]:
    """Return all texts, to find fonts for them."""
    found = {title}
    for scene in scenes:
        found.add(scene.caption)
        for shape in scene.shapes:
            if isinstance(shape, Text):
                found.add(shape.text)
            elif isinstance(shape, Grid):
                found.update(shape.texts)
    return found


class _Sheet:
    """The layout of a GIF: the fixed parts of every frame, and the places of the rest."""

    def __init__(self, title: str, scenes: Sequence[Scene], size: tuple[float, float]) -> None:
        self.width = size[0]
        room = (self.width - 2 * MARGIN) / 72
        self.title = wrapped(title, room, TITLE).split("\n")
        self.captions = [wrapped(scene.caption, room, SAID).split("\n") for scene in scenes]
        self.said = MARGIN + len(self.title) * TITLE * LINE + 4
        self.top = self.said + max(map(len, self.captions)) * SAID * LINE
        self.height = self.top + size[1] + 10

    def painted(self, shapes: Sequence[Shape], n: int) -> np.ndarray:
        """Return a frame on the way to scene ``n``."""
        painter = Painter(self.width, self.height, SCALE)
        lines = [(line, MARGIN + TITLE * LINE * i, TITLE) for i, line in enumerate(self.title)]
        said = self.captions[n]
        lines += [(line, self.said + SAID * LINE * i, SAID) for i, line in enumerate(said)]
        painter.draw([Text("", MARGIN, y + size * 0.5, line, size) for line, y, size in lines])
        painter.draw(shapes, self.top)
        painter.draw(self._progress(n))
        return painter.pixels()

    def _progress(self, n: int) -> list[Grid]:
        count = len(self.captions)
        each = (self.width - 2 * MARGIN) / count
        bar = (each - min(2.0, each / 4), 3.0)
        return [
            Grid("", MARGIN + i * each, self.height - 10, bar, ((shade,),), edge="")
            for i, shade in enumerate([0.6] * (n + 1) + [0.1] * (count - n - 1))
        ]


def _reduced(pixels: np.ndarray, palette: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return for each pixel the index of the nearest colour, 1 … 255.

    ``table`` caches the index of each of the 2²⁴ colours, 0 where unknown. Pillow's own search
    rounds colours first, which makes white paper grey.
    """
    packed = pixels.astype(np.uint32) @ np.array([2**16, 2**8, 1], np.uint32)
    unknown = np.unique(packed[table[packed] == 0])
    for some in np.array_split(unknown, 1 + len(unknown) // 4096):
        colours = np.stack([some >> 16, some >> 8 & 255, some & 255], -1).astype(np.int32)
        apart = ((colours[:, None] - palette[None, 1:].astype(np.int32)) ** 2).sum(-1)
        table[some] = 1 + apart.argmin(-1)
    return table[packed]


@cache
def _palette() -> np.ndarray:
    """Return the 256 colours of all GIFs (256, 3); no pixel uses the first."""
    blues = [colour(n / 102) for n in range(103)]
    sands = [colour(-n / 40) for n in range(1, 41)]
    greys = [(n / 63,) * 3 for n in range(64)]
    accent = np.array(named("accent")[:3])
    reds = [tuple(1 - (1 - accent) * n / 24) for n in range(1, 25)]
    inks = [tuple(accent * n / 24) for n in range(24)]
    chosen = [face[:3] for face in (blues[0], *blues, *sands, *greys, *reds, *inks)]
    return np.round(255 * np.array(chosen)).astype(np.uint8)
