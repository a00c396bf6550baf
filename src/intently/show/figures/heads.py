"""Every head of every layer as small multiples: layers down, heads across."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from intently.core.matrix import LazyMatrix
from intently.core.matrix.labelling import as_numbers, follows
from intently.core.matrix.patterns import measure
from intently.errors import ArgumentError, build, shape_of
from intently.foundation.checks import check_word
from intently.show.cells import Header, header, limits, name_columns, name_rows, paint
from intently.show.files import destination, finish
from intently.show.inputs import SCALES, Scale, Source, check, matrices_of, whole
from intently.show.labels import lines, shown, titled, visible
from intently.show.reading import (
    Names,
    Pooling,
    measured,
    missing,
    numbers,
    picture,
    pooled,
    shown_names,
)
from intently.show.sheet import HEADING, LINE, NOTES, WORD, Sheet, captions, height_of, width_of
from intently.show.style import ACCENT, QUIET, style

if TYPE_CHECKING:
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

Statistic = Callable[[LazyMatrix], torch.Tensor]

CELLS = 192
PAPER, PAGE = 7.2, 9.4
WIDEST, NARROWEST = 1.6, 0.4
DOT = 0.0125
"""Least width of a cell in inches: at a hundred dots an inch, none falls between two dots."""
LABELLED = 1.0
"""Width in inches from which each panel of the last row names its columns, not only the first."""
PALE = 0.1
"""Share of a common scale under which a head looks blank."""
BAR, BETWEEN = 0.7, 0.15
MARGIN = 0.12
GAP = 0.1
SIZE = 6.5
TITLE = SIZE * LINE + 0.05
NAME = 9 * LINE + 0.02


@dataclass(frozen=True)
class Head:
    """One panel: its title, its weights, and whether it is the highlighted one."""

    title: str
    values: np.ndarray
    highlighted: bool

    @property
    def top(self) -> float:
        """Its largest weight; 0 if none is finite."""
        return float(self.values[np.isfinite(self.values)].max(initial=0.0))


@dataclass(frozen=True)
class Group:
    """The panels of matrices of one kind, which share their words: rows of panels."""

    name: str
    shape: tuple[int, int]
    labels: Names
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
    groups = [
        _group(kind, members, sort, highlight, (reduce, scale))
        for kind, members in _kinds(found).items()
    ]
    large = list(dict.fromkeys(g.shape for g in groups if max(g.shape) > CELLS))
    heading = titled(title)
    drawn = [head for group in groups for row in group.panels for head in row]
    every = np.concatenate([head.values.ravel() for head in drawn])
    ends = limits(every) if scale == "shared" else None
    foot = [*(pooled(shape, CELLS, reduce) for shape in large), missing(every), left_out]
    foot.insert(0, _scales(drawn, ends))
    if isinstance(sort, str):
        foot.insert(0, f"beside each name its {sort.removeprefix('-')}, by which heads are sorted")
    if highlight is not None:
        framed = f"framed: {highlight[0]}, head {highlight[1]}"
        foot.insert(0, lines(f"{framed}, {caption}" if caption else framed))
    texts = [word for group in groups for side in group.labels for word in side]
    with style((*texts, heading, *foot, *found)):
        label = measured(reduce if large else None)
        label = label if ends else f"share of its largest {label.split()[-1]}"
        return finish(_draw(groups, (heading, "\n".join(filter(None, foot))), ends, label), path)


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
    look: tuple[Pooling, Scale],
) -> Group:
    rows: list[list[Head]] = []
    order: list[float] = []
    for name, matrix in members.items():
        values = picture(matrix, CELLS, look[0])
        values = values if matrix.ndim == 3 else values[None]
        layer = next((f"{part}·" for part in name.split(".") if part.isdecimal()), "")
        titles = [f"{layer}{head}" for head in range(len(values))]
        if sort:
            found = _statistic(sort, matrix, name)
            titles = [f"{place}  {_short(x)}" for place, x in zip(titles, found, strict=True)]
            order += found.tolist()
        made = zip(titles, values, strict=True)
        row = [Head(*of, (name, head) == highlight) for head, of in enumerate(made)]
        if look[1] == "own":
            row = [replace(head, title=f"{head.title}  ≤ {head.top:.2g}") for head in row]
        rows.append(row)
    if sort:
        flat = [head for row in rows for head in row]
        widest = max(map(len, rows))
        turn = -1 if isinstance(sort, str) and sort.startswith("-") else 1
        placed = [flat[i] for i in np.argsort(turn * np.array(order), kind="stable")]
        rows = [placed[i : i + widest] for i in range(0, len(placed), widest)]
    first = next(iter(members.values()))
    t, s = first.shape[-2:]
    return Group(kind, (t, s), shown_names(first, partial(shown, limit=14)), rows)


def _statistic(sort: str | Statistic, matrix: LazyMatrix, name: str) -> np.ndarray:
    if isinstance(sort, str):
        return _measured(sort.removeprefix("-"), matrix, name)
    with torch.no_grad():
        found = torch.as_tensor(sort(matrix))
    each = f"(h={matrix.shape[0]},)" if matrix.ndim == 3 else "()"
    if found.shape != matrix.shape[:-2]:
        raise build(
            ArgumentError,
            "sort",
            f"one number for each head, shape {each}",
            f"{shape_of(found)} for {name}",
            "the statistic still has an axis of steps",
            "average it: lambda A: A.entropy().mean(-1)",
        )
    return numbers(found).reshape(-1)


def _short(value: float) -> str:
    return "0" if abs(value) < 5e-4 else f"{value:.3g}"


def _measured(statistic: str, matrix: LazyMatrix, name: str) -> np.ndarray:
    columns, ids = matrix.labels[1], None
    if columns is not None and follows(matrix) is not None:
        ids = as_numbers(columns)
    found = measure(matrix, ids)
    if statistic not in found:
        raise build(
            ArgumentError,
            "sort",
            f"one of {', '.join(found)}, or a function of a matrix",
            f"{statistic!r} for {name}",
            "duplicate and induction need the tokens of a self-attention, divergence two heads",
        )
    return numbers(found[statistic].value()).reshape(-1)


@dataclass(frozen=True)
class Plan:
    """The arrangement of the groups: number side by side, width of panels and row labels."""

    columns: int
    panel: float
    across: int
    label: float

    @property
    def group(self) -> float:
        """Width of one group with its row labels, in inches."""
        return self.label + self.across * self.panel + (self.across - 1) * GAP

    @property
    def width(self) -> float:
        """Width of all groups side by side, in inches."""
        return self.columns * self.group + (self.columns - 1) * BETWEEN

    def bands(self, groups: Sequence[Group]) -> list[tuple[list[Group], float]]:
        """Return the groups side by side, band by band, and each band's height."""
        rows = [list(groups[i : i + self.columns]) for i in range(0, len(groups), self.columns)]
        return [(row, max(_height(group, self.panel) for group in row)) for row in rows]


def _plan(groups: Sequence[Group]) -> Plan:
    """Choose the arrangement with the widest panels that fits a page, if any does."""
    across = max(len(row) for group in groups for row in group.panels)
    label = 0.05 + max(width_of(group.labels.rows, SIZE) for group in groups)
    titles = [head.title for group in groups for row in group.panels for head in row]
    cells = max(min(group.shape[1], CELLS / 2) for group in groups)
    least = max(NARROWEST, DOT * cells, width_of(titles, SIZE) - GAP / 2)
    plans = []
    for columns in range(1, len(groups) + 1):
        room = PAPER - BAR - MARGIN - columns * label - (columns - 1) * BETWEEN
        panel = (room - columns * (across - 1) * GAP) / (columns * across)
        plan = Plan(columns, min(WIDEST, max(least, panel)), across, label)
        while plan.panel > least and sum(high for _, high in plan.bands(groups)) > PAGE:
            plan = replace(plan, panel=max(least, plan.panel - 0.02))
        plans.append(plan)
    return max(plans, key=lambda plan: (plan.panel, -plan.columns))


def _draw(
    groups: Sequence[Group], texts: tuple[str, str], ends: tuple[float, float] | None, label: str
) -> Figure:
    from matplotlib.colors import Normalize

    plan = _plan(groups)
    width = max(MARGIN + plan.width + BAR, 3.2)
    heading, foot = captions(texts, width - 2 * MARGIN)
    first = top = MARGIN + height_of(heading, HEADING, 0.07)
    bands = plan.bands(groups)
    height = top + sum(high for _, high in bands) + 0.06 + height_of(foot, NOTES, 0.08)

    sheet = Sheet.of(width, height)
    norm = Normalize(*ends) if ends else None
    sheet.write(MARGIN, MARGIN, heading)
    for band, high in bands:
        for column, group in enumerate(band):
            left = MARGIN + column * (plan.group + BETWEEN) + plan.label
            _draw_group(sheet, group, (left, top), plan.panel, norm)
        top += high
    high = max(_panel_height(groups[0], plan.panel), 1.0)
    place = MARGIN + plan.width + 0.15, first + NAME + TITLE, 0.1, high
    bar = sheet.colour_bar(place, norm or Normalize(0, 1), size=7)
    bar.set_ylabel(label, size=8)
    sheet.note(MARGIN, top + 0.04, foot)
    return sheet.figure


def _panel_height(group: Group, panel: float) -> float:
    t, s = group.shape
    return panel * min(max(t / s, 0.4), 1.5)


def _feet(group: Group, panel: float) -> Header:
    """Return the angle of the column labels and the height they take under the last row."""
    cell = min(panel / group.shape[1], 0.19)
    return header(group.labels.columns, cell, SIZE, panel / (SIZE * WORD))


def _height(group: Group, panel: float) -> float:
    rows = len(group.panels) * (_panel_height(group, panel) + TITLE + GAP / 2)
    return NAME + rows + _feet(group, panel).height + 0.08


def _draw_group(
    sheet: Sheet, group: Group, corner: tuple[float, float], panel: float, norm: Normalize | None
) -> None:
    from matplotlib.colors import Normalize

    left, top = corner
    high = _panel_height(group, panel)
    word = SIZE * WORD
    turn = _feet(group, panel).turn
    sheet.write(left, top, visible(group.name, 60), size=9)
    top += NAME
    for line, row in enumerate(group.panels):
        for column, head in enumerate(row):
            axes = sheet.axes(left + column * (panel + GAP), top + TITLE, panel, high)
            own = norm or Normalize(0, head.top or 1.0)
            paint(axes, head.values, group.shape, own, aspect="auto")
            ink = ACCENT if head.highlighted else QUIET
            axes.set_title(head.title, size=SIZE, pad=3, color=ink, parse_math=False)
            axes.set(xticks=[], yticks=[])
            if column == 0:
                name_rows(axes, group.labels.rows, high / word, SIZE)
            last = line == len(group.panels) - 1 or column >= len(group.panels[line + 1])
            if last and (panel >= LABELLED or column == 0):
                name_columns(axes, group.labels.columns, panel / word, SIZE, turn, side="bottom")
            if head.highlighted:
                axes.spines[:].set(color=ACCENT, linewidth=2, zorder=5)
        top += TITLE + high + GAP / 2
