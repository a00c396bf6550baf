"""Every head of every layer as small multiples: layers down, heads across."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from intently.core.matrix import LazyMatrix
from intently.core.matrix.labelling import as_numbers, follows
from intently.core.matrix.patterns import measure
from intently.errors import ArgumentError, build, shape_of
from intently.foundation.checks import check_word
from intently.show.cells import highest, limits, name_steps, paint
from intently.show.inputs import SCALES, Scale, Source, check, matrices_of, whole
from intently.show.labels import lines, shown, titled, visible
from intently.show.layout import LINE, Layout, destination, width_of
from intently.show.reading import (
    AxisNames,
    Pooling,
    measured,
    missing,
    numbers,
    picture,
    pooled,
    shown_names,
)
from intently.show.style import ACCENT, QUIET, style

if TYPE_CHECKING:
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

Statistic = Callable[[LazyMatrix], torch.Tensor]

CELLS = 192
PAPER, PAGE = 6.4, 9.4
"""Width and height in inches of the panels of a page."""
WIDEST, NARROWEST = 1.6, 0.4
DOT = 0.0125
"""Least width of a cell in inches: at a hundred dots an inch, none falls between two dots."""
LABELLED = 1.0
"""Width in inches from which each panel of the last row names its columns, not only the first."""
PALE = 0.1
"""Share of a common scale under which a head looks blank."""
GAP = 0.1
SIZE, NAME = 6.5, 9.0
"""Sizes of titles and labels, and of the names of kinds, in points."""


class Head(NamedTuple):
    """One panel: its title, its weights, and whether it is the highlighted one."""

    title: str
    values: np.ndarray
    highlighted: bool

    @property
    def top(self) -> float:
        """Its largest weight; 0 if none is finite."""
        return highest(self.values)


class HeadGroup(NamedTuple):
    """The panels of matrices of one kind, which share their words: rows of panels."""

    name: str
    shape: tuple[int, int]
    labels: AxisNames
    panels: list[list[Head]]


def heads(
    matrices: Source,
    *,
    sort: str | Statistic | None = None,
    highlight: tuple[str, int] | None = None,
    scale: Scale = "shared",
    reduce: Pooling = "mean",
    caption: str | None = None,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw all heads of all layers: layers down, heads across, one block for each kind.

    ``matrices`` maps names such as ``"decoder.1.cross_attention"`` to matrices (h, t, s), or
    (t, s), of one sentence, or is one matrix, or a recording of one sentence; names that differ
    only in their number are layers of one kind, and layers of one size share their words. A panel's
    title is ``layer·head``, both counted from 0. ``sort`` is a statistic by the name that
    `intently.core.matrix.patterns.measure` gives it, or one number for each head (h,), such as
    ``lambda A: A.entropy().mean(-1)``: panels are then sorted in ascending order and show their
    number; a minus before the name reverses the order. ``highlight`` frames one head, such as
    ``("decoder.1.cross_attention", 2)``, and ``caption`` says why. All heads share one scale, and a
    note says how many look blank on it; ``scale="own"`` shades each head from 0 to its largest
    weight, which stands in its title. More than 192 rows or columns are pooled as
    ``A.pool(…, reduce)`` does, and the figure says so: a mean hides single weights, which
    ``reduce="max"`` shows. Returns the figure, written to ``save`` if given.

    Raises ArgumentError for no matrices, other shapes, a highlighted head that does not exist, a
    statistic that these heads do not have, an unknown scale and an unknown suffix.

    >>> import torch
    >>> from intently.core.matrix import Dense
    >>> A = Dense(torch.eye(3).expand(2, 3, 3))
    >>> model = {f"encoder.{layer}.self_attention": A for layer in range(2)}
    >>> [axes.get_title() for axes in heads(model).axes[:4]]
    ['0·0', '0·1', '1·0', '1·1']
    """
    path = destination(save)
    check_word(scale, "scale", SCALES)
    found, left_out = matrices_of(matrices)
    highlight = _check(matrices, found, sort, highlight)
    own = scale == "own"
    groups = [
        _group(kind, members, sort, highlight, reduce, own)
        for kind, members in _kinds(found).items()
    ]
    large = list(dict.fromkeys(group.shape for group in groups if max(group.shape) > CELLS))
    drawn = [head for group in groups for row in group.panels for head in row]
    every = np.concatenate([head.values.ravel() for head in drawn])
    ends = None if own else limits(every)
    notes = []
    if highlight is not None:
        framed = f"framed: {highlight[0]}, head {highlight[1]}"
        notes.append(lines(f"{framed}, {caption}" if caption else framed))
    if isinstance(sort, str):
        notes.append(f"beside each name its {sort.removeprefix('-')}, by which heads are sorted")
    notes += [_scales(drawn, ends), *(pooled(shape, CELLS, reduce) for shape in large)]
    notes += [missing(every), left_out]
    heading, foot = titled(title), "\n".join(filter(None, notes))
    label = measured(reduce if large else None)
    label = f"share of its largest {label.split()[-1]}" if own else label
    texts = [word for group in groups for side in group.labels for word in side]
    with style((*texts, heading, foot, *found)):
        return _draw(groups, ends, label).finish(heading, foot, path)


def _check(
    source: Source,
    matrices: Mapping[str, LazyMatrix],
    sort: object,
    highlight: tuple[str, int] | None,
) -> tuple[str, int] | None:
    """Check the arguments; return the highlighted head."""
    for name, matrix in matrices.items():
        if check(matrix, f"matrices[{name!r}]").ndim not in (2, 3):
            one = "{name: seen[name][0] for name in seen.layers}"
            if isinstance(source, Mapping):
                one = "{name: A[0] for name, A in matrices.items()}"
            elif not hasattr(source, "calls"):
                one = "A[0]"
            raise build(
                ArgumentError,
                f"matrices[{name!r}]",
                "shape (h, t, s) or (t, s)",
                shape_of(matrix),
                "one figure shows one sentence, or one beam of a search",
                f"pick one: {one}",
            )
    if not (sort is None or isinstance(sort, str) or callable(sort)):
        expected = "the name of a statistic, or a function of a matrix"
        raise build(ArgumentError, "sort", expected, repr(sort))
    if highlight is None:
        return None
    counts = {name: A.shape[0] if A.ndim == 3 else 1 for name, A in matrices.items()}
    name, given = highlight if isinstance(highlight, tuple) and len(highlight) == 2 else ("", None)
    head = whole(given)
    if name not in counts or head is None or not 0 <= head < counts[name]:
        known = ", ".join(f"{name} (h={h})" for name, h in counts.items())
        raise build(ArgumentError, "highlight", f"a name and a head of {known}", repr(highlight))
    return name, head


def _scales(drawn: Sequence[Head], ends: tuple[float, float] | None) -> str:
    """Return a note on the scale of the heads; "" for a single one."""
    if ends is None:
        return "each head has its own scale, from 0 to its largest weight, the number after ≤"
    if len(drawn) == 1:
        return ""
    pale = sum(head.top < PALE * ends[1] for head in drawn)
    verb = "stays" if pale == 1 else "stay"
    rest = f'; {pale} of {len(drawn)} {verb} below a tenth of it: scale="own" shows them'
    return "one scale for all heads" + (rest if pale else "")


def _kinds(matrices: Mapping[str, LazyMatrix]) -> dict[str, dict[str, LazyMatrix]]:
    """Group matrices of one size whose names differ only in their number, in order.

    A group is named by the pattern of its names: ``decoder.*.cross_attention``.
    """
    kinds: dict[tuple[str, tuple[int, ...]], dict[str, LazyMatrix]] = {}
    for name, matrix in matrices.items():
        kind = re.sub(r"(?<![^.\s])\d+(?![^.\s])", "*", name)
        kinds.setdefault((kind, matrix.shape[-2:]), {})[name] = matrix
    often = Counter(kind for kind, _ in kinds)
    found = {}
    for (kind, size), members in kinds.items():
        name = kind if len(members) > 1 else next(iter(members))
        found[f"{name} ({size[0]} × {size[1]})" if often[kind] > 1 else name] = members
    return found


def _group(
    kind: str,
    members: Mapping[str, LazyMatrix],
    sort: str | Statistic | None,
    highlight: tuple[str, int] | None,
    reduce: Pooling,
    own: bool,
) -> HeadGroup:
    """Return the panels of matrices, sorted if asked; the widest row says how many stand in one."""
    rows: list[list[Head]] = []
    order: list[float] = []
    for name, matrix in members.items():
        values = picture(matrix, CELLS, reduce)
        values = values if matrix.ndim == 3 else values[None]
        layer = next((f"{part}·" for part in name.split(".") if part.isdecimal()), "")
        titles = [f"{layer}{head}" for head in range(len(values))]
        if sort:
            measures = _statistic(sort, matrix, name).tolist()
            order += measures
            short = ("0" if abs(x) < 5e-4 else f"{x:.3g}" for x in measures)
            titles = [f"{place}  {x}" for place, x in zip(titles, short, strict=True)]
        panels = zip(titles, values, strict=True)
        row = [Head(*panel, (name, head) == highlight) for head, panel in enumerate(panels)]
        if own:
            row = [head._replace(title=f"{head.title}  ≤ {head.top:.2g}") for head in row]
        rows.append(row)
    if sort:
        flat = [head for row in rows for head in row]
        widest = max(map(len, rows))
        turn = -1 if isinstance(sort, str) and sort.startswith("-") else 1
        placed = [flat[i] for i in np.argsort(turn * np.array(order), kind="stable")]
        rows = [placed[i : i + widest] for i in range(0, len(placed), widest)]
    first = next(iter(members.values()))
    t, s = first.shape[-2:]
    return HeadGroup(kind, (t, s), shown_names(first, partial(shown, limit=14)), rows)


def _statistic(sort: str | Statistic, matrix: LazyMatrix, name: str) -> np.ndarray:
    """Return a number for each head: of a function, or of a measure of the library by name."""
    if isinstance(sort, str):
        columns = matrix.labels[1]
        ids = None if columns is None or follows(matrix) is None else as_numbers(columns)
        measures = measure(matrix, ids)
        if (statistic := sort.removeprefix("-")) in measures:
            return numbers(measures[statistic].value()).reshape(-1)
        raise build(
            ArgumentError,
            "sort",
            f"one of {', '.join(measures)}, or a function of a matrix",
            f"{statistic!r} for {name}",
            "duplicate and induction need the tokens of a self-attention, divergence two heads",
        )
    with torch.no_grad():
        measures = torch.as_tensor(sort(matrix))
    if measures.shape != matrix.shape[:-2]:
        each = f"(h={matrix.shape[0]},)" if matrix.ndim == 3 else "()"
        raise build(
            ArgumentError,
            "sort",
            f"one number for each head, shape {each}",
            f"{shape_of(measures)} for {name}",
            "the statistic still has an axis of steps",
            "average it: lambda A: A.entropy().mean(-1)",
        )
    return numbers(measures).reshape(-1)


def _arranged(groups: Sequence[HeadGroup]) -> tuple[int, float]:
    """Choose how many groups stand side by side: the widest panels that fit a page, if any do."""
    across = max(len(row) for group in groups for row in group.panels)
    label = 0.1 + max(width_of(group.labels.rows, SIZE) for group in groups)
    best = 0.0, 0
    for columns in range(1, len(groups) + 1):
        bands = [groups[n : n + columns] for n in range(0, len(groups), columns)]
        panels = sum(max(len(group.panels) * _height(group) for group in band) for band in bands)
        texts = sum(0.6 + max(len(group.panels) for group in band) * 0.2 for band in bands)
        panel = min(WIDEST, (PAPER / columns - label) / across - GAP, (PAGE - texts) / panels)
        best = max(best, (panel, -columns))
    cells = max(min(group.shape[1], CELLS / 2) for group in groups)
    titles = (head.title for group in groups for row in group.panels for head in row)
    least = max(NARROWEST, DOT * cells, width_of(titles, SIZE) - GAP / 2)
    return -best[1] or 1, max(least, best[0])


def _height(group: HeadGroup) -> float:
    """Return the height of a panel as a share of its width."""
    t, s = group.shape
    return min(max(t / s, 0.4), 1.5)


def _draw(groups: Sequence[HeadGroup], ends: tuple[float, float] | None, label: str) -> Layout:
    from matplotlib.colors import Normalize

    norm = Normalize(*ends) if ends else None
    columns, panel = _arranged(groups)
    across = max(len(row) for group in groups for row in group.panels)
    layout, corners, top = Layout(GAP, GAP / 2), [], 0
    for first in range(0, len(groups), columns):
        band = groups[first : first + columns]
        corners += [(top, n * across) for n in range(len(band))]
        top += 1 + max(len(group.panels) for group in band)
    for group, corner in zip(groups, corners, strict=True):
        _draw_group(layout, group, corner, panel, norm)
    for group, corner in zip(groups, corners, strict=True):
        if not group.name:
            continue
        axes = layout.blank(corner[0], corner[1], panel, NAME * LINE)
        name, alone = visible(group.name, 60), len(group.panels[0]) == 1
        axes.text(0, 0, name, size=NAME, va="top", parse_math=False, in_layout=alone)
    place = 1, min(len(groups), columns) * across
    layout.colour_bar(place, max(panel * _height(groups[0]), 1.0), norm or Normalize(0, 1), label)
    return layout


def _draw_group(
    layout: Layout, group: HeadGroup, corner: tuple[int, int], panel: float, norm: Normalize | None
) -> None:
    from matplotlib.colors import Normalize

    high = panel * _height(group)
    for line, row in enumerate(group.panels):
        for column, head in enumerate(row):
            last = line == len(group.panels) - 1 or column >= len(group.panels[line + 1])
            named = last and (panel >= LABELLED or column == 0)
            place = corner[0] + 1 + line, corner[1] + column
            axes = layout.panel(*place, panel, high, measured=column == 0 or named)
            paint(axes, head.values, group.shape, norm or Normalize(0, head.top or 1.0))
            ink = ACCENT if head.highlighted else QUIET
            axes.set_title(head.title, size=SIZE, pad=3, color=ink, parse_math=False)
            axes.set(xticks=[], yticks=[])
            if column == 0:
                name_steps(axes, "left", group.labels.rows, high, SIZE)
            if named:
                name_steps(axes, "bottom", group.labels.columns, panel, SIZE)
            if head.highlighted:
                axes.spines[:].set(color=ACCENT, linewidth=2, zorder=5)
