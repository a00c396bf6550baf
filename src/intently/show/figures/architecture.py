"""A model as a diagram: its modules, in the order in which they run, and the shapes between."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch import nn

from intently.foundation.checks import check_kind
from intently.show.diagram.drawing import EDGE, GAP, WIDE, Column, Paper
from intently.show.diagram.walk import DiagramPart, columns, title_of
from intently.show.labels import titled
from intently.show.layout import destination
from intently.show.style import LINES, QUIET, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def architecture(
    model: nn.Module,
    *inputs: Any,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw any ``torch.nn.Module`` as boxes and arrows, from its input at the bottom to its output.

    ``inputs`` are the arguments of one call, or one mapping of them by name; one run without
    gradients and dropout tells the order of the modules, what each reads, the shapes at the arrows
    and where one output is added to another (a circle with a plus). Without inputs nothing runs:
    the modules stand in the order of their definition. Parameters stand in the boxes; layers that
    differ in nothing are drawn once. A second input that enters on its own starts a second column,
    as in Vaswani et al. 2017, "Attention Is All You Need", figure 1. Returns the figure, written to
    ``save``. Raises KindError for what is no module.

    >>> import torch
    >>> from intently.nn import EncoderLayer
    >>> figure = architecture(EncoderLayer(16, 4, 64), torch.zeros(1, 9, 16))
    >>> [text.get_text() for text in figure.axes[0].texts][:3]
    ['x (1, 9, 16)', 'Layer norm', '32']
    """
    path = destination(save)
    check_kind(model, nn.Module, "model", "a torch.nn.Module")
    stacks = columns(model, inputs)
    heading = titled(title) or title_of(model)
    total = sum(p.numel() for p in model.parameters())
    said = _described(heading, stacks, total)
    with style(said.split("\n")):
        paper = Paper.new()
        _draw(paper, stacks)
        return paper.fitted().finish(heading, _notes(stacks, total, bool(inputs)), path, said)


def _draw(paper: Paper, stacks: Sequence[DiagramPart]) -> None:
    """The columns from left to right, and what one reads of another between them."""
    apart = 2 * EDGE + 58
    drawn = [Column(paper, n * apart, -1 if stacks[n + 1 :] else 1) for n in range(len(stacks))]
    homes = {part.name: n for n, stack in enumerate(stacks) for part in stack.walk()}
    for column, stack in zip(drawn, stacks, strict=True):
        column.start(stack.title, stack.takes)
        column.draw(stack.parts)
    read = {name for column in drawn for name, _, _ in column.waiting}
    for column, stack in zip(drawn, stacks, strict=True):
        last = ""
        for name, shape, (x, y) in column.waiting:
            if name not in homes:
                paper.arrow((x - 40, y), (x, y), ink=LINES[0])
                paper.text(x - 44, y, f"{name}\n{shape}", ink=QUIET, ha="right")
                continue
            n = homes[name]
            left, between = drawn[n], column.x - apart / 2
            start, label = [(left.x, left.y), (left.x, left.y + GAP)], between - 5
            if name != stacks[n].parts[-1].name and name in left.boxes:
                start, label = [(left.x + WIDE / 2, left.boxes[name])], between + 44
            top = start[-1][1]
            points = (*start, (between, top), (between, y), (x, y))
            paper.arrow(*(points if name != last else points[-2:]), ink=LINES[0], lw=1.1)
            if name != last:
                paper.text(label, top + 7, f"memory {shape}", ink=LINES[0], ha="right")
            last = name
        if stack.parts[-1].name not in read:
            column.end()


def _described(heading: str, stacks: Sequence[DiagramPart], total: int) -> str:
    """The model in words, a line for each part: for readers who do not see the picture."""

    def lines(part: DiagramPart, depth: int) -> list[str]:
        shapes = f": {part.takes} → {part.gives}" if part.takes else ""
        own = f", {part.parameters:,} parameters" if part.parameters else ""
        reads = "".join(f", reads {name} {shape}" for name, shape in part.reads)
        title = part.title or part.kind.capitalize()
        inner = [line for each in part.parts for line in lines(each, depth + 1)]
        return [f"{'  ' * depth}{title}{shapes}{own}{reads}", *inner]

    whole = [line for stack in stacks for line in lines(stack, 1)]
    return "\n".join((f"{heading}, {total:,} parameters", *whole))


def _notes(stacks: Sequence[DiagramPart], total: int, ran: bool) -> str:
    folded = any(
        one.kind == "layer" and one.like(other)
        for stack in stacks
        for part in stack.walk()
        for one, other in pairwise(part.parts)
    )
    said = f"Plain numbers count parameters: {total:,} in all."
    said += " Layers that differ in nothing are drawn once." if folded else ""
    return said if ran else f"{said} In the order of definition: without inputs, nothing ran."
