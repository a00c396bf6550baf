"""A matrix of any size as one picture: weights, scores, an alignment, what edits do."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch

from intently.core.matrix import LazyMatrix
from intently.core.matrix.labelling import follows
from intently.core.matrix.patterns import entropies
from intently.errors import ArgumentError, KindError, build
from intently.foundation.checks import check_word
from intently.show import reading
from intently.show.cells import (
    count_steps,
    crowded_limits,
    ground,
    header,
    name_columns,
    name_rows,
    outline,
    paint,
    rule,
    write_numbers,
)
from intently.show.files import destination, finish
from intently.show.inputs import Choice, Plain, Source, any_numbers, one_of
from intently.show.labels import shown, titled
from intently.show.reading import Pooling, Survey, survey
from intently.show.sheet import (
    HEADING,
    LINE,
    NOTES,
    WORD,
    captions,
    constrained,
    few_ticks,
    height_of,
    width_of,
)
from intently.show.style import GRID, SIDES, signed_map, style, weight_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure

CELLS = 512
"""Cells of the picture on each side at most: two pixels each in a file of 200 dots per inch."""

NUMBERED = 12
"""Rows and columns up to which every cell shows its number."""

SINKS = ("show", "hide")
DECADES = 6
SIDE, BAR = 0.55, 0.11
"""Width of the statistics at the sides and of the colour bar, in inches."""

Scale = Literal["linear", "log"]
Sink = Literal["show", "hide"]


class Gold(Protocol):
    """Known links between words, as (source, target): an `Alignment` is one."""

    @property
    def sure(self) -> Collection[tuple[int, int]]: ...
    @property
    def possible(self) -> Collection[tuple[int, int]]: ...


class Effects(Protocol):
    """A table of `intently.effects`, with columns "layer", "difference" and "head" or "key"."""

    @property
    def columns(self) -> Sequence[str]: ...
    def __getitem__(self, column: str, /) -> Sequence[Any]:
        """Return the values of a column."""
        ...


Drawn: TypeAlias = Source | Effects
Links: TypeAlias = list[tuple[int, int]]


def heatmap(
    matrix: Drawn,
    *,
    head: Choice = None,
    gold: Gold | None = None,
    margins: bool = True,
    scale: Scale = "linear",
    sink: Sink = "show",
    reduce: Pooling = "mean",
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw a (t, s) matrix of any size, its entropy per query and what each key receives.

    Plain numbers, a tensor, an array or nested lists, are drawn as weights if no number is below 0
    and each row sums to 1 or 0; otherwise as plain numbers, without the statistics of weights. A
    table of `intently.effects` is drawn with its layers down and its heads (or keys) across: blue
    raises the score, sand lowers it.

    Of (h, t, s) ``head`` chooses one, else their mean is drawn; of a recording, or of matrices by
    name, it is ``"name"`` or ``("name", head)``. Up to 12 × 12 cells show their numbers. Links of
    ``gold`` are outlined, sure ones solid, possible ones dashed. The side shows the entropy of each
    row in nats, the bottom the sum of each column, averaged where rows or columns share a cell;
    ``margins=False`` leaves them out.

    More than 512 rows or columns are pooled as ``A.pool(…, reduce)`` does, and the colour bar says
    so: a mean hides single weights, which ``reduce="max"`` shows. ``scale="log"`` shades by the
    logarithm of the weight, over at most six decades; on the linear scale, one weight in two
    hundred of a large matrix may exceed the end of the scale, which then is pointed.
    ``sink="hide"`` hatches the first key that any query looks at, and leaves it out of the scale.
    Returns the figure, written to ``save``.

    Raises ArgumentError for an empty matrix, an ambiguous choice of matrix, links outside the
    matrix, a table without layers, an unknown scale, sink or suffix, and a sink or a logarithm for
    numbers that have none. The sink: Xiao et al. 2024, "Efficient Streaming Language Models with
    Attention Sinks", section 3.1; the alignment: Bahdanau, Cho & Bengio 2015, "Neural Machine
    Translation by Jointly Learning to Align and Translate", figure 3.

    >>> import torch
    >>> from intently.core.matrix import Dense
    >>> figure = heatmap(Dense(torch.ones(2000, 1000) / 1000))
    >>> figure.axes[0].images[0].get_array().shape
    (512, 512)
    """
    path = destination(save)
    check_word(scale, "scale", ("linear", "log"))
    check_word(sink, "sink", SINKS)
    given, sides, what = matrix, None, "number"
    if hasattr(matrix, "columns") and not isinstance(matrix, LazyMatrix):
        given, sides, what = _grid(matrix)
    lazy, chosen = one_of(given, head, read=any_numbers)
    plain = lazy.no_weights() if isinstance(lazy, Plain) else ""
    plain = "a table of effects" if sides else plain
    found, notes = _numbers(lazy, reduce, plain) if plain else _survey(lazy, reduce)
    if plain:
        _check_plain(found.cells, scale, sink, plain)
    elif unknown := reading.missing(found.cells):
        notes.append(f"{unknown}, and left out of the column sums")
    if sides:
        notes = []
    labels = reading.shown_names(lazy, shown)
    if sink == "hide":
        notes += _hide_sink(found, labels.columns)
    links = _links(gold, *lazy.shape)
    if gold is not None:
        notes.append("outlined: gold links (solid sure, dashed possible)")
    if not plain and max(lazy.shape) <= CELLS:
        notes.append(reading.outside(found.cells, labels.rows) if sink == "show" else "")
    if not margins or plain:
        found = found._replace(entropy=np.empty(0), received=np.empty(0))
    texts = titled(title, chosen), "\n".join(filter(None, notes))
    with style((*labels.rows, *labels.columns, *texts)):
        look = _look(
            found.cells, scale, reduce if max(lazy.shape) > CELLS else None, plain and what
        )
        names = sides or _sides(lazy, bool(plain))
        return finish(_draw(lazy, found, look, (labels, names), links, texts), path)


# --- what is drawn --------------------------------------------------------------------------------


def _grid(table: Any) -> tuple[LazyMatrix, tuple[str, str], str]:
    """Return a table of effects as a matrix, the names of its sides, and that of its numbers."""
    columns = table.columns
    if not {"layer", "difference"} <= set(columns):
        expected = "columns layer and difference"
        fix = "edits.each_head, each_layer and each_key give them"
        raise build(ArgumentError, "table", expected, ", ".join(columns), fix=fix)
    layers = [str(layer) for layer in table["layer"]]
    if not layers:
        raise build(ArgumentError, "table", "at least one row", "none")
    across = next((name for name in ("head", "key") if name in columns), "")
    places = [int(place) for place in table[across]] if across else [0] * len(layers)
    rows = list(dict.fromkeys(layers))
    values = np.full((len(rows), 1 + max(places)), np.nan)
    for layer, place, difference in zip(layers, places, table["difference"], strict=True):
        values[rows.index(layer), place] = float(difference)
    top = tuple(map(str, range(values.shape[1]))) if across else ("",)
    return Plain(torch.from_numpy(values), (tuple(rows), top)), ("layer", across), "difference"


def _links(gold: Gold | None, t: int, s: int) -> tuple[Links, Links]:
    """Return the sure and the other possible links."""
    if gold is None:
        return [], []
    if not (hasattr(gold, "sure") and hasattr(gold, "possible")):
        fix = "Alignment.of(links) of intently.core.matrix.alignment makes one"
        got = type(gold).__name__
        raise build(KindError, "gold", "links that are sure, and possible", got, fix=fix)
    sure = {(int(j), int(i)) for j, i in gold.sure}
    possible = {(int(j), int(i)) for j, i in gold.possible}
    outside = sorted((j, i) for j, i in sure | possible if not (0 <= j < s and 0 <= i < t))
    if outside:
        raise build(
            ArgumentError,
            "gold",
            f"links (source, target) inside a (t, s) matrix of shape ({t}, {s})",
            f"the link {outside[0]}",
            "the links count words, the matrix may count subwords, or the sides were exchanged",
            "merge the matrix to words first: intently.core.matrix.Merged",
        )
    return sorted(sure), sorted(possible - sure)


def _sides(lazy: LazyMatrix, plain: bool) -> tuple[str, str]:
    """Return the names of rows and columns."""
    if plain:
        return "rows", "columns"
    if None not in lazy.labels and follows(lazy) is None:
        return "produced", "source"
    rows, columns = lazy.labels
    return (
        "query steps" if rows is None else "queries",
        "key steps" if columns is None else "keys",
    )


def _check_plain(cells: np.ndarray, scale: str, sink: str, why: str) -> None:
    """Refuse options for weights if the numbers are not weights."""
    if sink == "hide":
        raise build(
            ArgumentError, "sink", "'show' for numbers that are not weights", repr(sink), why
        )
    if scale == "log" and (cells < 0).any():
        raise build(ArgumentError, "scale", "'linear' for numbers below 0", repr(scale), why)


def _numbers(lazy: LazyMatrix, reduce: Pooling, why: str) -> tuple[Survey, list[str]]:
    """Read numbers that are not weights, so without entropy and column sums."""
    notes = [f"numbers as they are, no attention weights: {why}"]
    if max(lazy.shape) > CELLS:
        notes.append(reading.pooled(lazy.shape, CELLS, reduce, "numbers"))
    cells = reading.picture(lazy, CELLS, reduce).copy()
    if unknown := reading.missing(cells):
        notes.append(unknown.replace("weights", "numbers"))
    return Survey(cells, np.empty(0), np.empty(0), float(np.nanmax(cells, initial=0.0))), notes


def _survey(lazy: LazyMatrix, reduce: Pooling) -> tuple[Survey, list[str]]:
    """Read a small matrix cell by cell, a larger one in one pass."""
    if max(lazy.shape) > CELLS:
        found = survey(lazy, CELLS, CELLS, reduce)
        note = reading.pooled(lazy.shape, CELLS, reduce)
        if reduce != "max":
            note += f"; the largest single weight is {found.highest:.2g}"
        return found, [note]
    with torch.no_grad():
        w = lazy.dense()
        entropy, cells = reading.numbers(entropies(w)), reading.numbers(w).copy()
    received = np.where(np.isfinite(cells), cells, 0).sum(0)
    return Survey(cells, np.maximum(entropy, 0), received, float(np.nanmax(cells, initial=0.0))), []


def _hide_sink(found: Survey, columns: tuple[str, ...]) -> list[str]:
    """Leave out the cells of the first key that any query looks at, and say so."""
    looked_at = np.flatnonzero(found.received > 0)
    if not len(looked_at):
        return []
    key, s = int(looked_at[0]), len(found.received)
    share = found.received[key] / found.received.sum()
    cells = found.cells.shape[1]
    cell = key * cells // s
    first, last = (-(-edge * s // cells) for edge in (cell, cell + 1))
    keys = f"key {key}" + (f" ‘{columns[key]}’" if columns[key] != str(key) else "")
    hatched = f"keys {first} to {last - 1}; {keys}" if last - first > 1 else f"{keys}; it"
    found.cells[:, cell] = np.nan
    return [f"hatched, not in the scale: {hatched} takes {share:.0%} of all weight"]


# --- how it is drawn ------------------------------------------------------------------------------


class Look(NamedTuple):
    """The mapping from numbers to colours, and the label of the colour bar."""

    norm: Normalize
    colours: Colormap
    label: str


def _look(values: np.ndarray, scale: Scale, reduce: Pooling | None, plain: str) -> Look:
    """Return the look of weights, or of ``plain`` numbers of this name."""
    from matplotlib.colors import Normalize

    label = reading.measured(reduce, plain or "weight")
    if plain == "difference" or (plain and (values < 0).any()):
        top = float(np.abs(values[np.isfinite(values)]).max(initial=0.0)) or 1.0
        return Look(Normalize(-top, top), signed_map(), label)
    return Look(_norm(values, scale), weight_map(), label)


def _norm(values: np.ndarray, scale: Scale) -> Normalize:
    from matplotlib.colors import LogNorm, Normalize

    if scale == "linear":
        return Normalize(*crowded_limits(values))
    positive = values[np.isfinite(values) & (values > 0)]
    top = float(positive.max(initial=0.0)) or 1.0
    bottom = max(float(positive.min(initial=top)), top * 10.0**-DECADES)
    return LogNorm(bottom if bottom < top else top / 10, top)


def _draw(
    matrix: LazyMatrix,
    found: Survey,
    look: Look,
    names: tuple[reading.Names, tuple[str, str]],
    links: tuple[Links, Links],
    texts: tuple[str, str],
) -> Figure:
    from matplotlib.colors import LogNorm

    values, norm, margins = found.cells, look.norm, found.entropy.size > 0
    (t, s), ((rows, columns), sides) = matrix.shape, names
    cell = min(0.4, 4.4 / s, 4.4 / t)
    wide, high = max(s * cell, 1.1), max(t * cell, 1.1)
    size = 8.5 if cell >= 0.2 else 7.0
    word = size * WORD
    counted = tuple(side is None for side in matrix.labels)
    top = header(columns, wide / s, size, wide / word)
    above = (size * LINE if counted[1] else top.height) + 9 * LINE + 0.12
    left = 9 * LINE + 0.2 + width_of([str(t)] if counted[0] else rows, size)
    side = SIDE if margins else 0.0
    width = left + wide + max(side + BAR + 0.9, top.overhang + 0.1)
    texts = captions(texts, width - 0.24)
    below = side + 0.45 if margins else 0.2
    height = above + high + below + height_of(texts[0], HEADING) + height_of(texts[1], NOTES, 0.08)

    figure = constrained(width, height, *texts)
    widths, heights = [wide, side or 0.01, BAR], [high, side or 0.01]
    grid = figure.add_gridspec(2, 3, width_ratios=widths, height_ratios=heights)
    axes = figure.add_subplot(grid[0, 0])
    logarithmic = isinstance(norm, LogNorm)
    shaded = np.maximum(values, (norm.vmin or 0.0) / 10) if logarithmic else values
    paint(axes, shaded, (t, s), norm, "auto", look.colours)
    if cell >= 0.12:
        rule(axes, (t, s))
    if counted[1]:
        count_steps(axes, "x", s, size)
    else:
        name_columns(axes, columns, wide / word, size, top.turn)
    if counted[0]:
        count_steps(axes, "y", t, size)
    else:
        name_rows(axes, rows, high / word, size)
    axes.set_ylabel(sides[0])
    axes.set_xlabel(sides[1])
    axes.xaxis.set_label_position("top")
    if max(t, s) <= NUMBERED:
        write_numbers(axes, values, min(8.0, cell * 72 * 0.26), norm, look.colours)
    outline(axes, *links)
    if margins:
        _entropy(figure.add_subplot(grid[0, 1]), found.entropy, values.shape[0])
        _received(figure.add_subplot(grid[1, 0]), found.received, values)
    _colour_bar(figure.add_subplot(grid[0, 2]), values, look)
    return figure


def _colour_bar(axes: Axes, values: np.ndarray, look: Look) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    beyond = np.isfinite(values) & (values > (look.norm.vmax or 0.0))
    bar: Any = axes.figure.colorbar(
        ScalarMappable(look.norm, look.colours),
        cax=axes,
        label=look.label,
        extend="max" if beyond.any() else "neither",
        format=None if isinstance(look.norm, LogNorm) else "{x:.3g}",
    )
    bar.outline.set_visible(False)


def _entropy(axes: Axes, entropy: np.ndarray, cells: int) -> None:
    levels, edges = _steps(entropy, cells)
    axes.stairs(levels, edges, orientation="horizontal", fill=True, color=SIDES, lw=0)
    axes.set_xlim(0, _end(levels))
    axes.set_ylim(edges[-1], edges[0])
    axes.set_yticks([])
    axes.set_xlabel("entropy (nats)", size=7.5, loc="left")
    _quiet(axes, axes.xaxis)


def _received(axes: Axes, received: np.ndarray, values: np.ndarray) -> None:
    levels, edges = _steps(received, values.shape[1])
    axes.stairs(levels, edges, fill=True, color=SIDES, lw=0)
    shown = np.isfinite(values).any(0)
    axes.set_ylim(_end(levels[shown]), 0)
    for cell in np.flatnonzero(~shown):
        wide = edges[cell + 1] - edges[cell]
        hatched = ground((edges[cell], 0), wide, axes.get_ylim()[0], zorder=2)
        axes.add_patch(hatched)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xticks([])
    axes.set_xlabel("received attention (column sums)", size=7.5)
    _quiet(axes, axes.yaxis)


def _quiet(axes: Axes, axis: Axis) -> None:
    few_ticks(axis, 3)
    axis.set_major_formatter("{x:g}")
    axis.grid(color=GRID, lw=0.6)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(labelsize=7, length=0, pad=2)


def _steps(values: np.ndarray, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of the values in each of ``cells`` cells, and where the cells end."""
    n = len(values)
    members = np.arange(n) * cells // n
    sums = np.bincount(members, np.where(np.isfinite(values), values, 0))
    edges = np.searchsorted(members, np.arange(cells + 1)) - 0.5
    return sums / np.bincount(members), edges


def _end(levels: np.ndarray) -> float:
    return float(levels.max(initial=0.0)) * 1.08 or 1.0
