"""Pictures of attention: lazy matrices as figures for print and as blocks for a terminal.

Weights: `heatmap` draws a matrix of any size (an alignment with its gold links, scores, what edits
do to a score), `lines` joins its words, `text` shades a sentence by what one token looks at (or
shows how tokenizers cut it), `overlay` shades a picture, `heads` draws every head of a model. Each
takes a lazy matrix or plain weights, matrices by name, or a recording. Values: `mask`, `bias`,
`positions`, `embeddings` (word vectors on a map), `curves` (series with their intervals, the
history of a run). `architecture` draws the parts of a model. All return a matplotlib ``Figure`` and
write it to ``save=`` (PNG, SVG or PDF, by suffix; equal input gives equal bytes).

`blocks` returns text for a terminal, `save_page` writes a page that opens anywhere, `widget` shows
it in a notebook, and `animate` explains how attention works.
"""

from typing import TYPE_CHECKING

from intently.foundation.on_demand import listed, names

if TYPE_CHECKING:
    from intently.show import animate
    from intently.show.figures.architecture import architecture
    from intently.show.figures.curves import curves
    from intently.show.figures.embeddings import embeddings
    from intently.show.figures.heads import heads
    from intently.show.figures.heatmap import heatmap
    from intently.show.figures.lines import lines
    from intently.show.figures.masks import bias, mask
    from intently.show.figures.overlay import overlay
    from intently.show.figures.positions import positions
    from intently.show.figures.text import text
    from intently.show.page import save_page
    from intently.show.page.writing import widget
    from intently.show.terminal import blocks

__all__ = [
    "animate",
    "architecture",
    "bias",
    "blocks",
    "curves",
    "embeddings",
    "heads",
    "heatmap",
    "lines",
    "mask",
    "overlay",
    "positions",
    "save_page",
    "text",
    "widget",
]

_HOMES = {
    "figures.architecture": ("architecture",),
    "figures.curves": ("curves",),
    "figures.positions": ("positions",),
    "figures.heads": ("heads",),
    "figures.heatmap": ("heatmap",),
    "figures.lines": ("lines",),
    "figures.embeddings": ("embeddings",),
    "figures.overlay": ("overlay",),
    "page": ("save_page",),
    "page.writing": ("widget",),
    "figures.masks": ("bias", "mask"),
    "terminal": ("blocks",),
    "figures.text": ("text",),
}
"""The public names of each module; `animate` is a package."""

__getattr__ = names(__name__, _HOMES)

__dir__ = listed(__name__)
