"""Layers beside one another by the matrices with which they mix steps, for several inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from intently.errors import ArgumentError, KindError, build, shape_of
from intently.matrix.lazy import LazyMatrix
from intently.show.cells import paint
from intently.show.choosing import one_of
from intently.show.files import destination, finish
from intently.show.labels import titled, visible
from intently.show.reading import any_numbers, weights
from intently.show.sheet import NOTES, Sheet, heading_of, width_of, wrapped
from intently.show.style import QUIET, signed_map, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGIN = 0.12
SIDE, BETWEEN, ROW = 1.75, 0.3, 0.16
ABOVE, BELOW = 0.3, 0.62
SCALE = "Each column has a colour scale of its own: blue above 0, sand below."
LARGEST = 512


def mixing(
    matrices: Mapping[str, Sequence[LazyMatrix | object]],
    *,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw how layers mix steps: a column for each layer, a row for each input.

    ``matrices[layer]`` holds one matrix (t, s) for each input: the weights of an attention, the
    weight of a dense layer along the steps, the band of a convolution. Below each column stands
    whether its matrix depends on the input, and how many of its entries are 0. Each column has a
    colour scale of its own: blue above 0, sand below. Returns the figure, written to ``save``.

    Raises ArgumentError for no layer, layers with different numbers of inputs or no (t, s), and
    above 512 steps; KindError for values that are no matrices. Source: Cordonnier et al. 2020, "On
    the Relationship between Self-Attention and Convolutional Layers".

    >>> import torch
    >>> from intently import attend
    >>> x, y, dense = torch.randn(6, 4), torch.randn(6, 4), torch.nn.Linear(6, 6).weight.detach()
    >>> figure = mixing({"dense": [dense, dense], "attention": [attend(x, x), attend(y, y)]})
    >>> [axes.get_xlabel().split("\\n")[0] for axes in figure.axes[2:]]
    ['the same for every input', 'another for each input']
    """
    path = destination(save)
    columns = _checked(matrices)
    heading = titled(title)
    inputs = len(next(iter(columns.values())))
    with style((heading, *columns)):
        left = MARGIN + width_of(["input 2"], 8.5) + 0.1
        width = left + len(columns) * SIDE + (len(columns) - 1) * BETWEEN + MARGIN
        heading, tall = heading_of(heading, width - 2 * MARGIN)
        top = MARGIN + tall + ABOVE
        sheet = Sheet.of(width, top + inputs * SIDE + (inputs - 1) * ROW + BELOW)
        for row in range(inputs):
            y = top + row * (SIDE + ROW)
            look = {"size": 8.5, "color": QUIET, "ha": "right", "va": "center"}
            sheet.write(left - 0.1, y + SIDE / 2, f"input {row + 1}", **look)
            for n, (name, found) in enumerate(columns.items()):
                axes = sheet.axes(left + n * (SIDE + BETWEEN), y, SIDE, SIDE)
                _paint(axes, found[row], max(float(np.abs(x).max()) for x in found))
                if row == 0:
                    axes.set_title(visible(name), size=9.5, pad=5, parse_math=False)
                if row == inputs - 1:
                    axes.set_xlabel(_said(found), size=7.5, color=QUIET, linespacing=1.3)
        sheet.write(MARGIN, MARGIN, heading)
        sheet.note(left, sheet.height - 0.22, wrapped(SCALE, width - left, NOTES))
        return finish(sheet.figure, path)


def _checked(matrices: Mapping[str, Sequence[object]]) -> dict[str, list[np.ndarray]]:
    if not isinstance(matrices, Mapping):
        expected = "matrices by the name of their layer"
        raise build(KindError, "matrices", expected, type(matrices).__name__)
    if not matrices:
        raise build(ArgumentError, "matrices", "at least one layer", "none")
    found: dict[str, list[np.ndarray]] = {}
    for name, several in matrices.items():
        where = f"matrices[{name!r}]"
        if not isinstance(several, list | tuple) or not several:
            expected = "a list of matrices, one for each input"
            raise build(KindError, where, expected, type(several).__name__)
        first = next(iter(found.values()), several)
        if len(several) != len(first):
            raise build(ArgumentError, where, f"{len(first)}, one for each input", len(several))
        for n, matrix in enumerate(several):
            lazy, _ = one_of(matrix, None, f"{where}[{n}]", any_numbers)
            if max(lazy.shape[-2:]) > LARGEST:
                expected = f"at most {LARGEST} steps"
                raise build(ArgumentError, f"{where}[{n}]", expected, shape_of(lazy))
            found.setdefault(name, []).append(weights(lazy))
    return found


def _paint(axes: object, values: np.ndarray, most: float) -> None:
    from matplotlib.colors import Normalize

    t, s = values.shape
    norm = Normalize(-(most or 1.0), most or 1.0)
    paint(axes, values, (t, s), norm, "auto", signed_map())  # pyright: ignore[reportArgumentType]
    axes.set(xticks=[], yticks=[])  # pyright: ignore[reportAttributeAccessIssue]


def _said(found: Sequence[np.ndarray]) -> str:
    """Whether the matrix depends on the input, and how full it is."""
    fixed = all(np.array_equal(found[0], other) for other in found[1:])
    first = "the same for every input" if fixed else "another for each input"
    zeros = float(np.mean([np.mean(values == 0) for values in found]))
    return f"{first}\n" + ("full: no entry is 0" if zeros == 0 else f"{zeros:.0%} of entries are 0")
