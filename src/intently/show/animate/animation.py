"""A finished story: its scenes, and the page that plays them.

The page stores shapes, not pictures of them: tens of kilobytes instead of a megabyte for a video of
the same steps, sharp at any zoom, light or dark. Shapes shared by several scenes are stored once.
The policy allows only one script and one style sheet, by their hashes, and no connections.
"""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from intently.foundation import files
from intently.show.animate.stage import (
    MARGIN,
    USUAL,
    CellGrid,
    Curve,
    Shape,
    Stage,
    StoryScene,
    Words,
)
from intently.show.labels import titled
from intently.show.page.script import joined, source, strict
from intently.show.page.writing import described, head

BODY = """<body>
<main class="intently" data-theme="auto">
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


@dataclass(frozen=True)
class Animation:
    """A title, scenes, and their size in pixels.

    ``save("x.html")`` writes one page that draws them from their numbers, with play, pause and
    steps, and fetches nothing; where the story is ``live``, one can drag its numbers there. It
    plays in a notebook.
    """

    title: str
    scenes: tuple[StoryScene, ...]
    size: tuple[float, float]
    live: dict[str, Any] | None = field(default=None, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.scenes)

    def __repr__(self) -> str:
        return f"Animation({self.title!r}, {len(self)} scenes): .save('x.html')"

    @property
    def captions(self) -> tuple[str, ...]:
        """The captions, scene by scene."""
        return tuple(scene.caption for scene in self.scenes)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page; equal stories give equal bytes.

        The content is complete before the file is opened. Raises ArgumentError for suffixes other
        than .html.
        """
        final = files.destination(path, "save", (".html",), "story")
        files.make_folder(final.parent)
        files.replace_file(final, self.page().encode())
        return final

    def page(self) -> str:
        """Return the page as HTML, which fetches nothing."""
        code, css = strict(joined(["player"])), source("colours.css") + source("player.css")
        body = BODY.format(title=html.escape(self.title), count=len(self))
        data = described({**stored(self.scenes, self.size), "live": self.live})
        return (
            f"{head(self.title, css, code)}{body}"
            f'<script type="application/json" id="story">{data}</script>\n'
            f"<script>{code}</script>\n</body>\n</html>\n"
        )

    def _repr_html_(self) -> str:
        high = round(self.size[1]) + (190 if self.live is None else 400)
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(self.page())}" '
            f'title="{html.escape(self.title)}" width="100%" height="{high}" '
            'style="border:0"></iframe>'
        )


def destination(save: str | os.PathLike[str] | None) -> Path | None:
    """Return the path to save to; call it before making a story.

    Raises as `intently.foundation.files.destination` does, for suffixes other than .html.
    """
    return None if save is None else files.destination(save, "save", (".html",), "story")


def told(
    stage: Stage, title: str, path: Path | None, opening: str, live: dict[str, Any] | None = None
) -> Animation:
    """Return the story on the stage, written to ``path`` if there is one.

    It opens with the picture of its last scene under a caption of its own: the first frame, which
    stands for the whole wherever nothing moves, is never empty. On a page it follows what one
    drags, if the story is ``live``.
    """
    first = StoryScene(opening, stage.scenes[-1].shapes, USUAL)
    animation = Animation(titled(title), (first, *stage.scenes), stage.size(), live)
    if path is not None:
        animation.save(path)
    return animation


def stored(scenes: Sequence[StoryScene], size: tuple[float, float]) -> dict[str, Any]:
    """Return scenes as plain values: each distinct shape once, and its index in each scene."""
    known: dict[Shape, int] = {}
    indexed = [
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
        "scenes": indexed,
    }


def _plain(shape: Shape) -> dict[str, Any]:
    plain = {
        name: round(value, 2) if isinstance(value, float) else value
        for name, value in asdict(shape).items()
    }
    kind = {CellGrid: "cells", Words: "text", Curve: "curve"}[type(shape)]
    return {"kind": kind, **plain}
