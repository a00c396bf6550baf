"""A matrix of any size as one picture: weights, scores, an alignment, what edits do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
import torch

from intently.core.matrix import LazyMatrix
from intently.core.matrix.alignment import Alignment
from intently.core.matrix.labelling import follows
from intently.core.matrix.patterns import entropies
from intently.errors import ArgumentError, KindError, build
from intently.foundation.checks import check_word
from intently.show import reading
from intently.show.cells import (
    crowded_limits,
    ground,
    highest,
    name_steps,
    outline,
    paint,
    write_numbers,
)
from intently.show.inputs import Choice, Plain, Source, one_of
from intently.show.labels import shown, titled
from intently.show.layout import Layout, destination, few_ticks
from intently.show.reading import Pooling, Survey, survey
from intently.show.style import GRID, SIDES, signed_map, style, weight_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure

CELLS = 512
"""Cells of the picture on each side at most: two pixels each in a file of 200 dots per inch."""

NUMBERED = 12
"""Rows and columns up to which every cell shows its number."""

SINKS = ("show", "hide")
DECADES = 6
SIDE = 0.55
"""Width of the statistics at the sides, in inches."""

Scale = Literal["linear", "log"]
Sink = Literal["show", "hide"]


class EffectsLike(Protocol):
    """A table of `intently.effects`, with columns "layer", "difference" and "head" or "key"."""

    @property
    def columns(self) -> Sequence[str]: ...
    def __getitem__(self, column: str, /) -> Sequence[Any]:
        """Return the values of a column."""
        ...


Drawn: TypeAlias = Source | EffectsLike
Links: TypeAlias = list[tuple[int, int]]


def heatmap(
    matrix: Drawn,
    *,
    head: Choice = None,
    gold: Alignment | None = None,
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
    given, sides, what = matrix, None, "weight"
    if hasattr(matrix, "columns") and not isinstance(matrix, LazyMatrix):
        given, sides, what = _grid(matrix)
    lazy, chosen = one_of(given, head, numbers=True)
    plain = lazy.no_weights() if isinstance(lazy, Plain) and not sides else ""
    plain, what = ("a table of effects", what) if sides else (plain, "number" if plain else what)
    if plain and sink == "hide":
        expected = "'show' for numbers that are not weights"
        raise build(ArgumentError, "sink", expected, repr(sink), plain)
    found, notes = _read(lazy, reduce, plain)
    if plain and scale == "log" and (found.cells < 0).any():
        raise build(ArgumentError, "scale", "'linear' for numbers below 0", repr(scale), plain)
    notes = [] if sides else notes
    labels = reading.shown_names(lazy, shown)
    if sink == "hide":
        notes += _hide_sink(found, labels.columns)
    links = _links(gold, *lazy.shape)
    if gold is not None:
        notes.append("outlined: gold links (solid sure, dashed possible)")
    if not plain and max(lazy.shape) <= CELLS and sink == "show":
        notes.append(reading.outside(found.cells, labels.rows))
    if not margins:
        found = found._replace(entropy=np.empty(0), received=np.empty(0))
    texts = titled(title, chosen), "\n".join(filter(None, notes))
    with style((*labels.rows, *labels.columns, *texts)):
        signed = what == "difference" or bool(plain and (found.cells < 0).any())
        layout = _draw(
            found,
            _norm(found.cells, scale, signed),
            signed_map() if signed else weight_map(),
            tuple(n if own is None else x for n, own, x in zip(lazy.shape, lazy.labels, labels)),
            sides or (("rows", "columns") if plain else _sides(lazy)),
            links,
            reading.measured(reduce if max(lazy.shape) > CELLS else None, what),
        )
        return layout.finish(*texts, path)


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


def _links(gold: Alignment | None, t: int, s: int) -> tuple[Links, Links]:
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


def _sides(lazy: LazyMatrix) -> tuple[str, str]:
    """Return the names of rows and columns."""
    if None not in lazy.labels and follows(lazy) is None:
        return "produced", "source"
    rows, columns = ("steps" if names is None else "" for names in lazy.labels)
    return f"query {rows}" if rows else "queries", f"key {columns}" if columns else "keys"


def _read(lazy: LazyMatrix, reduce: Pooling, plain: str) -> tuple[Survey, list[str]]:
    """Return cells and statistics, and notes: ``plain`` numbers are no weights, and have neither.

    A small matrix is read cell by cell, a large one in one pass.
    """
    notes = [f"numbers as they are, no attention weights: {plain}"] if plain else []
    large = max(lazy.shape) > CELLS
    if large:
        notes.append(reading.pooled(lazy.shape, CELLS, reduce, "numbers" if plain else "weights"))
    if large and not plain:
        found = survey(lazy, CELLS, CELLS, reduce)
        if reduce != "max":
            notes[-1] += f"; the largest single weight is {found.highest:.2g}"
    else:
        cells = reading.picture(lazy, CELLS, reduce).copy()
        found = Survey(cells, np.empty(0), np.empty(0), float(np.nanmax(cells, initial=0.0)))
    if not (large or plain):
        entropy = np.maximum(entropies(torch.from_numpy(found.cells)).numpy(), 0)
        received = np.where(np.isfinite(found.cells), found.cells, 0).sum(0)
        found = found._replace(entropy=entropy, received=received)
    if unknown := reading.missing(found.cells):
        rest = f"{unknown}, and left out of the column sums"
        notes.append(unknown.replace("weights", "numbers") if plain else rest)
    return found, notes


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


def _norm(values: np.ndarray, scale: Scale, signed: bool) -> Normalize:
    """Return the scale of the colours."""
    from matplotlib.colors import LogNorm, Normalize

    if signed:
        top = highest(np.abs(values)) or 1.0
        return Normalize(-top, top)
    if scale == "linear":
        return Normalize(*crowded_limits(values))
    positive = values[np.isfinite(values) & (values > 0)]
    top = highest(values) or 1.0
    bottom = max(float(positive.min(initial=top)), top * 10.0**-DECADES)
    return LogNorm(bottom if bottom < top else top / 10, top)


def _draw(
    found: Survey,
    norm: Normalize,
    colours: Colormap,
    names: Sequence[Sequence[str] | int],
    sides: tuple[str, str],
    links: tuple[Links, Links],
    label: str,
) -> Layout:
    """Draw the cells, the names of rows and columns or their count, and what stands beside them."""
    from matplotlib.colors import LogNorm

    values = found.cells
    t, s = (n if isinstance(n, int) else len(n) for n in names)
    cell = min(0.4, 4.4 / s, 4.4 / t)
    wide, high = max(s * cell, 1.1), max(t * cell, 1.1)
    size = 8.5 if cell >= 0.2 else 7.0
    layout = Layout()
    axes = layout.panel(0, 0, wide, high)
    shaded = np.maximum(values, (norm.vmin or 0.0) / 10) if isinstance(norm, LogNorm) else values
    paint(axes, shaded, (t, s), norm, colours, cell >= 0.12)
    name_steps(axes, "left", names[0], high, size)
    name_steps(axes, "top", names[1], wide, size)
    axes.set_ylabel(sides[0])
    axes.set_xlabel(sides[1])
    if max(t, s) <= NUMBERED:
        write_numbers(axes, values, min(8.0, cell * 72 * 0.26), norm, colours)
    outline(axes, *links)
    if found.entropy.size:
        rows = np.ones(len(values), dtype=bool)
        _margin(layout.panel(0, 1, SIDE, high), found.entropy, rows, "entropy (nats)")
        columns, said = np.asarray(np.isfinite(values).any(0)), "received attention (column sums)"
        _margin(layout.panel(1, 0, wide, SIDE), found.received, columns, said, across=True)
    beyond = np.isfinite(values) & (values > (norm.vmax or 0.0))
    extend = "max" if beyond.any() else "neither"
    layout.colour_bar((0, 2), high, norm, label, colours, extend=extend)
    return layout


def _margin(
    axes: Axes, values: np.ndarray, shown: np.ndarray, name: str, across: bool = False
) -> None:
    """Draw a statistic of rows, or ``across`` of columns, and its mean where some share a cell.

    Cells that are not ``shown`` are hatched.
    """
    members = np.arange(len(values)) * len(shown) // len(values)
    levels = np.bincount(members, np.where(np.isfinite(values), values, 0)) / np.bincount(members)
    edges = np.searchsorted(members, np.arange(len(shown) + 1)) - 0.5
    turned = "vertical" if across else "horizontal"
    axes.stairs(levels, edges, orientation=turned, fill=True, color=SIDES, lw=0)
    end = float(levels[shown].max(initial=0.0)) * 1.08 or 1.0
    for cell in np.flatnonzero(~shown):
        axes.add_patch(ground((edges[cell], 0), edges[cell + 1] - edges[cell], end, zorder=2))
    axes.set_xlabel(name, size=7.5, loc="center" if across else "left")
    if across:
        axes.set(xlim=(edges[0], edges[-1]), ylim=(end, 0), xticks=[])
    else:
        axes.set(xlim=(0, end), ylim=(edges[-1], edges[0]), yticks=[])
    axis = axes.yaxis if across else axes.xaxis
    few_ticks(axis, 3)
    axis.set_major_formatter("{x:g}")
    axis.grid(color=GRID, lw=0.6)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(labelsize=7, length=0, pad=2)
