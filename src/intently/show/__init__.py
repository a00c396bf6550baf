"""Pictures of attention: lazy matrices drawn as figures for print and as blocks for a terminal.

Weights: `alignment` draws one sentence, `lines` joins its words, `text` shades it by what one token
looks at, `overlay` shades a picture, `heads` draws every head of a model, `heatmap` a matrix of any
size; each takes a lazy matrix or plain weights, matrices by name, or a recording. Values: `mask`,
`bias`, `positions`, `embeddings` (word vectors on a map), `tokens` (a sentence under several
tokenizers), `training` (the curves of a run), `by_length` (scores by length of sentence), `bars`
(numbers with their intervals). All return a matplotlib ``Figure`` and write it to ``save=`` (PNG,
SVG or PDF, by suffix; equal input gives equal bytes).

`blocks` returns text for a terminal, `save_page` writes a page that opens anywhere, `widget` shows
it in a notebook, and `animate` tells how attention works.
"""

from typing import TYPE_CHECKING

from intently.on_demand import names

if TYPE_CHECKING:
    from intently.show import animate
    from intently.show.alignments import alignment
    from intently.show.curves import training
    from intently.show.encodings import positions
    from intently.show.grids import heads
    from intently.show.heatmaps import heatmap
    from intently.show.intervals import bars
    from intently.show.lengths import by_length
    from intently.show.links import lines
    from intently.show.maps import embeddings
    from intently.show.overlays import overlay
    from intently.show.page import save_page
    from intently.show.page.widget import widget
    from intently.show.pieces import tokens
    from intently.show.rules import bias, mask
    from intently.show.terminal import blocks
    from intently.show.texts import text

__all__ = [
    "alignment",
    "animate",
    "bars",
    "bias",
    "blocks",
    "by_length",
    "embeddings",
    "heads",
    "heatmap",
    "lines",
    "mask",
    "overlay",
    "positions",
    "save_page",
    "text",
    "tokens",
    "training",
    "widget",
]

_HOMES = {
    "alignments": ("alignment",),
    "intervals": ("bars",),
    "curves": ("training",),
    "encodings": ("positions",),
    "grids": ("heads",),
    "heatmaps": ("heatmap",),
    "lengths": ("by_length",),
    "links": ("lines",),
    "maps": ("embeddings",),
    "overlays": ("overlay",),
    "page": ("save_page",),
    "page.widget": ("widget",),
    "pieces": ("tokens",),
    "rules": (
        "bias",
        "mask",
    ),
    "terminal": ("blocks",),
    "texts": ("text",),
}
"""Module: the names above that it holds; `animate` is a package."""

__getattr__ = names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
