"""Pictures of attention: lazy matrices drawn as figures for print and as blocks for a terminal.

`alignment` draws one sentence, `heads` every head of a model, `heatmap` a matrix of any size,
`training` the curves of a run; each returns a matplotlib ``Figure`` and writes it to ``save=``
(PNG, SVG or PDF, by suffix; equal input gives equal bytes). `blocks` returns text for a terminal.
"""

from intently.show.alignments import alignment
from intently.show.curves import training
from intently.show.grids import heads
from intently.show.heatmaps import heatmap
from intently.show.terminal import blocks

__all__ = ["alignment", "blocks", "heads", "heatmap", "training"]
