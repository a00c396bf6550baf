"""A finished story: its scenes, and the page that plays them."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass, field
from pathlib import Path

from intently.show import files
from intently.show.animate import player
from intently.show.animate.live import Live
from intently.show.animate.shapes import Scene
from intently.show.animate.stage import USUAL, Stage
from intently.show.labels import titled

SUFFIXES = (".html",)


@dataclass(frozen=True)
class Animation:
    """A title, scenes, and their size in pixels.

    ``save("x.html")`` writes one page that draws them from their numbers, with play, pause and
    steps, and fetches nothing; where the story is ``live``, one can drag its numbers there. It
    plays in a notebook.
    """

    title: str
    scenes: tuple[Scene, ...]
    size: tuple[float, float]
    live: Live | None = field(default=None, compare=False, repr=False)

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
        found = destination(path)
        assert found is not None
        files.write(found, self.page().encode())
        return found

    def page(self) -> str:
        """Return the page as HTML."""
        return player.page(self.title, self.scenes, self.size, self.live)

    def _repr_html_(self) -> str:
        high = round(self.size[1]) + (190 if self.live is None else 400)
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(self.page())}" '
            f'title="{html.escape(self.title)}" width="100%" height="{high}" '
            'style="border:0"></iframe>'
        )


def destination(save: str | os.PathLike[str] | None) -> Path | None:
    """Return the path to save to; call it before making a story.

    Raises as `intently.show.files.destination` does, for suffixes other than .html.
    """
    return files.destination(save, SUFFIXES, "story")


def told(
    stage: Stage,
    title: str,
    path: Path | None,
    opening: str,
    scene: int = -1,
    live: Live | None = None,
) -> Animation:
    """Return the story on the stage, written to ``path`` if there is one.

    It opens with the picture of one of its scenes, by default the last, under a caption of its own:
    the first frame, which stands for the whole wherever nothing moves, is never empty. On a page it
    follows what one drags, if the story is ``live``.
    """
    first = Scene(opening, stage.scenes[scene].shapes, USUAL)
    animation = Animation(titled(title), (first, *stage.scenes), stage.size(), live)
    if path is not None:
        animation.save(path)
    return animation
