"""A model as a diagram: the parts that are there, their shapes and how they are joined."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from intently.errors import KindError, build
from intently.foundation.parts import HasTree, Part
from intently.show.diagram.column import EDGE, GAP, Column
from intently.show.diagram.paper import Paper
from intently.show.diagram.unrolled import unrolled
from intently.show.files import destination, finish
from intently.show.labels import titled
from intently.show.style import LINES, QUIET, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def architecture(
    model: HasTree | Part, *, title: str | None = None, save: str | os.PathLike[str] | None = None
) -> Figure:
    """Draw a model or block as boxes and arrows, from the input at the bottom to the output.

    ``model`` has a method ``tree`` that returns its `Part`, as every model and block of the
    library does, or is such a tree. Shapes stand at the arrows where they change, parameters in the
    boxes; layers that differ in nothing are drawn once. Circles with a plus add a residual. A
    recurrent encoder–decoder is unrolled over its steps; attention alone is drawn from queries,
    keys and values to its output. Returns the figure, written to ``save``.

    Raises KindError for what has no tree. The pictures are those of Vaswani et al. 2017, "Attention
    Is All You Need", figures 1 and 2, and Bahdanau et al. 2015, "Neural Machine Translation by
    Jointly Learning to Align and Translate", figure 1.

    >>> from intently.modules import MultiHeadAttention
    >>> figure = architecture(MultiHeadAttention(16, 4, kv_heads=2))
    >>> "(b, 2, t, 4)" in [text.get_text() for text in figure.axes[0].texts]
    True
    """
    path = destination(save)
    tree = model.tree() if isinstance(model, HasTree) and not isinstance(model, type) else model
    if not isinstance(tree, Part):
        expected = "a model or block with a tree of its parts"
        fix = "our models and blocks have one: model.tree()"
        raise build(KindError, "model", expected, type(model).__name__, fix=fix)
    with style():
        heading = titled(title) or tree.title
        paper = Paper.new()
        if any(part.kind == "cell" for part in tree.walk()):
            unrolled(paper, *tree.parts)
        elif [part.kind for part in tree.parts] == ["stack", "stack"]:
            _both(paper, *tree.parts)
        else:
            _one(paper, tree)
        return finish(paper.finish(heading, _notes(tree)), path, _described(tree))


def _one(paper: Paper, tree: Part) -> None:
    composite = [part for part in tree.walk() if part.kind in ("attention", "feed-forward")]
    expand = len(composite) == 1
    column = Column(paper, 0, 1)
    column.start("", tree.takes)
    column.draw(tree.parts if tree.kind in ("model", "layer", "stack") else [tree], expand)
    column.end("")
    for name, shape, (x, y) in column.waiting:
        paper.arrow((x - 40, y), (x, y), ink=LINES[0])
        paper.text(x - 44, y, f"{name}\n{shape}", ink=QUIET, ha="right")


def _both(paper: Paper, encoder: Part, decoder: Part) -> None:
    """The encoder on the left, the decoder on the right, and what it reads between them."""
    apart = 2 * EDGE + 58
    left, right = Column(paper, 0, -1), Column(paper, apart, 1)
    for column, stack, name in ((left, encoder, "source"), (right, decoder, "target")):
        column.start(name, stack.takes)
        column.draw(stack.parts)
    right.end("logits")
    between = apart / 2
    top = left.y + GAP
    for n, (_, shape, (x, y)) in enumerate(right.waiting):
        points = (0, left.y), (0, top), (between, top), (between, y), (x, y)
        paper.arrow(*(points if n == 0 else points[2:]), ink=LINES[0], lw=1.1)
        if n == 0:
            paper.text(between - 5, top + 7, f"memory {shape}", ink=LINES[0], ha="right")


def _described(part: Part, depth: int = 0) -> str:
    """The tree in words, a line for each part: for readers who do not see the picture."""
    shapes = f": {part.takes} → {part.gives}" if part.takes else ""
    own = f", {part.total:,} parameters" if part.total else ""
    reads = "".join(f", reads {name} {shape}" for name, shape in part.reads)
    line = f"{'  ' * depth}{part.title}{shapes}{own}{reads}"
    return "\n".join((line, *(_described(each, depth + 1) for each in part.parts)))


def _notes(tree: Part) -> str:
    attends = any(part.kind == "attention" for part in tree.walk())
    folded = any(
        one.like(other)
        for part in tree.walk()
        for one, other in zip(part.parts, part.parts[1:], strict=False)
        if one.kind == "layer"
    )
    folded = " Layers that differ in nothing are drawn once." if folded else ""
    cells = any(part.kind == "cell" for part in tree.walk())
    step = " Attention is drawn for step 2; every step attends." if cells and attends else ""
    return f"Plain numbers count parameters: {tree.total:,} in all.{folded}{step}"
