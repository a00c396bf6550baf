"""A story as one page: its numbers, and a small player that draws them on a canvas.

The page stores shapes, not pictures of them: tens of kilobytes instead of a megabyte for a video of
the same steps, sharp at any zoom, light or dark. Shapes shared by several scenes are stored once.
The policy allows only one script and one style sheet, by their hashes, and no connections.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import Any

from intently.show.animate.live import Live
from intently.show.animate.shapes import Curve, Grid, Scene, Shape
from intently.show.animate.stage import MARGIN
from intently.show.page.writing import described, head

BODY = """<body>
<main>
<h1>{title}</h1>
<p id="said" aria-live="polite"></p>
<div id="stage" tabindex="0" role="group" aria-label="picture"><canvas role="img"></canvas></div>
<div id="controls" role="group" aria-label="player">
<button id="first" type="button" aria-label="first step" title="first step (Home)"></button>
<button id="back" type="button" aria-label="step back" title="step back (←)"></button>
<button id="play" type="button" aria-label="play" title="play or pause (space)"></button>
<button id="next" type="button" aria-label="step forward" title="step forward (→)"></button>
<input id="at" type="range" min="1" max="{count}" value="1" aria-label="step">
<output id="count" for="at"></output>
</div>
<div id="try" role="group" aria-label="your own numbers" hidden></div>
</main>
"""


def page(
    title: str, scenes: Sequence[Scene], size: tuple[float, float], live: Live | None = None
) -> str:
    """Return the self-contained page; with ``live``, its first scene follows what one drags."""
    scripts = ("live.js", "trying.js", "player.js") if live else ("player.js",)
    code, css = "".join(map(source, scripts)), source("player.css")
    body = BODY.format(title=html.escape(title), count=len(scenes))
    data = described({**stored(scenes, size), "live": live and live.plain()})
    return (
        f"{head(title, css, code)}{body}"
        f'<script type="application/json" id="story">{data}</script>\n'
        f"<script>{code}</script>\n</body>\n</html>\n"
    )


@cache
def source(name: str) -> str:
    """Return the text of a file of the player."""
    return (files("intently.show.animate") / name).read_text(encoding="utf-8")


def stored(scenes: Sequence[Scene], size: tuple[float, float]) -> dict[str, Any]:
    """Return scenes as plain values: each distinct shape once, and its index in each scene."""
    known: dict[Shape, int] = {}
    told = [
        {
            "caption": scene.caption,
            "hold": scene.hold,
            "shapes": [known.setdefault(shape, len(known)) for shape in scene.shapes],
        }
        for scene in scenes
    ]
    left = MARGIN - 2  # the page has a margin of its own
    return {
        "left": left,
        "width": round(size[0] - left, 1),
        "height": round(size[1], 1),
        "shapes": list(map(_plain, known)),
        "scenes": told,
    }


def _plain(shape: Shape) -> dict[str, Any]:
    kind = "grid" if isinstance(shape, Grid) else "curve" if isinstance(shape, Curve) else "text"
    found = {
        name: round(value, 2) if isinstance(value, float) else value
        for name, value in asdict(shape).items()
    }
    if isinstance(shape, Grid):
        found["shades"] = [[_shade(x) for x in row] for row in shape.shades]
    return {"kind": kind, **found}


def _shade(shade: float | None) -> float | str | None:
    """Replace NaN (the hatched shade), which JSON lacks."""
    return "hole" if shade is not None and shade != shade else shade
