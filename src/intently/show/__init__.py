"""Pictures of attention: lazy matrices as figures for print and as blocks for a terminal.

Weights: `alignment` draws one sentence, `lines` joins its words, `text` shades it by what one token
looks at, `overlay` shades a picture, `heads` draws every head of a model, `heatmap` a matrix of any
size. Each takes a lazy matrix or plain weights, matrices by name, or a recording. `effects` draws
what edits do to a score, layers × heads. Values: `mask`, `bias`, `positions`, `embeddings` (word
vectors on a map), `tokens` (a sentence under several tokenizers), `training` (the curves of a run),
`by_length` (scores by length of sentence), `by_context` (losses by tokens of context), `bars`
(numbers with their intervals). `architecture` draws the parts of a model. All return a
matplotlib ``Figure`` and write it to ``save=`` (PNG, SVG or PDF, by suffix; equal input gives equal
bytes).

`blocks` returns text for a terminal, `save_page` writes a page that opens anywhere, `widget` shows
it in a notebook, and `animate` explains how attention works.
"""

from typing import TYPE_CHECKING

from intently.foundation.on_demand import listed, names

if TYPE_CHECKING:
    from intently.show import animate
    from intently.show.figures.alignment import alignment
    from intently.show.figures.architecture import architecture
    from intently.show.figures.bars import bars
    from intently.show.figures.by_context import by_context
    from intently.show.figures.by_length import by_length
    from intently.show.figures.effects import effects
    from intently.show.figures.embeddings import embeddings
    from intently.show.figures.heads import heads
    from intently.show.figures.heatmap import heatmap
    from intently.show.figures.lines import lines
    from intently.show.figures.masks import bias, mask
    from intently.show.figures.overlay import overlay
    from intently.show.figures.positions import positions
    from intently.show.figures.text import text
    from intently.show.figures.tokens import tokens
    from intently.show.figures.training import training
    from intently.show.page import save_page
    from intently.show.page.widget import widget
    from intently.show.terminal import blocks

__all__ = [
    "alignment",
    "animate",
    "architecture",
    "bars",
    "bias",
    "blocks",
    "by_context",
    "by_length",
    "effects",
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
    "figures.alignment": ("alignment",),
    "figures.architecture": ("architecture",),
    "figures.bars": ("bars",),
    "figures.training": ("training",),
    "figures.positions": ("positions",),
    "figures.heads": ("heads",),
    "figures.heatmap": ("heatmap",),
    "figures.by_context": ("by_context",),
    "figures.by_length": ("by_length",),
    "figures.lines": ("lines",),
    "figures.effects": ("effects",),
    "figures.embeddings": ("embeddings",),
    "figures.overlay": ("overlay",),
    "page": ("save_page",),
    "page.widget": ("widget",),
    "figures.tokens": ("tokens",),
    "figures.masks": ("bias", "mask"),
    "terminal": ("blocks",),
    "figures.text": ("text",),
}
"""The public names of each module; `animate` is a package."""

__getattr__ = names(__name__, _HOMES)

__dir__ = listed(__name__)
