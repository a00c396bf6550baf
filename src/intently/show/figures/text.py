"""A text shaded by attention: what one token looks at, or who looks at it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch

from intently.errors import ArgumentError, build, shape_of
from intently.foundation.checks import check_word
from intently.matrix import LazyMatrix
from intently.matrix.labelling import follows
from intently.show.cells import limits
from intently.show.choosing import Choice, Source, one_of, place
from intently.show.files import destination, finish
from intently.show.labels import mostly_right_to_left, shown, spaced, titled, visible
from intently.show.reading import missing, names, numbers, shown_names
from intently.show.sheet import LINE, Sheet, height_of, width_of, widths_of, wrapped
from intently.show.style import ACCENT, FRAME, HATCH, HOLE, QUIET, ink_on, style, weight_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

Looks = Literal["at", "from"]

LOOKS = ("at", "from")
LARGEST = 2000
FEW = 32
"""Texts of at most so many tokens show the numbers too."""

PAPER = 6.6
MARGIN = 0.16
SIZE = 11.0
BETWEEN = 0.1
BLANK = 0.05
PAD = 0.045
CLOSE = 0.012


class Word(NamedTuple):
    """A token as it is drawn: what it says, whether a blank precedes, its weight, if it has one."""

    text: str
    blank: bool
    weight: float | None
    framed: bool


class Passage(NamedTuple):
    """Words in reading order under a small heading."""

    name: str
    words: list[Word]


def text(
    matrix: Source,
    token: int | str,
    *,
    looks: Looks = "at",
    head: Choice = None,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Shade a text by what one token looks at (a row), or by who looks ``"from"`` it (a column).

    ``token`` is a query, or a key where ``looks="from"``, by its position or by its text where
    that occurs once; it is framed. Of (h, t, s) ``head`` chooses one, else their mean is drawn; of
    a recording it is ``"name"`` or ``("name", head)``. Where rows and columns name the same text,
    or rows the token after it, it is written once; in cross-attention both texts are. A row of a
    decoder is the token that it reads, as in "and (writes softmax)". Texts of at
    most 32 tokens show the weights in figures; others are shaded only. Marks of tokenizers become
    blanks, and a text that is written from right to left stands so. Returns the figure, written to
    ``save`` if given.

    Raises ArgumentError for a token that is not there or there twice, an unknown ``looks``, more
    than 2,000 tokens, RangeError for a position outside.

    >>> import torch
    >>> from intently.matrix import Dense
    >>> words = ("it", "was", "tired")
    >>> figure = text(Dense(torch.eye(3), labels=(words, words)), "it")
    >>> [written.get_text() for written in figure.axes[0].texts][:3]
    ['it', '1.00', 'was']
    """
    path = destination(save)
    check_word(looks, "looks", LOOKS)
    lazy, chosen = one_of(matrix, head)
    if max(lazy.shape) > LARGEST:
        expected, cause = f"at most {LARGEST:,} rows and columns", "a text is written out in full"
        fix = "draw it with intently.show.heatmap, which pools"
        raise build(ArgumentError, "matrix", expected, shape_of(lazy), cause, fix)
    at = place(token, names(lazy)[looks == "from"])
    values = _weights(lazy, at, looks)
    passages = _passages(lazy, at, looks, values)
    name = shown_names(lazy, shown)[looks == "from"][at]
    said = f"What ‘{name}’ looks at" if looks == "at" else f"Who looks at ‘{name}’"
    heading = titled(title or said, chosen)
    foot = missing(values)
    drawn = [word.text for passage in passages for word in passage.words]
    with style((*drawn, heading)):
        return finish(_draw(passages, limits(values), (heading, foot)), path)


def _weights(lazy: LazyMatrix, at: int, looks: Looks) -> np.ndarray:
    with torch.no_grad():
        return numbers(lazy[at, :] if looks == "at" else lazy[:, at])


def _passages(lazy: LazyMatrix, at: int, looks: Looks, values: np.ndarray) -> list[Passage]:
    rows, columns = names(lazy)
    ahead = follows(lazy)
    if ahead is None:
        own, other = (rows, columns) if looks == "at" else (columns, rows)
        asked, answers = ("the query", "keys") if looks == "at" else ("the key", "queries")
        return [
            Passage(asked, _words(own, {}, at)),
            Passage(answers, _words(other, dict(enumerate(values)), None)),
        ]
    t, s = lazy.shape
    last = (lazy.labels[0] or ())[t - 1 :] if ahead else ()
    whole = (*columns, *filter(None, last))
    first = s - t
    places = range(s) if looks == "at" else range(first, first + t)
    framed = first + at if looks == "at" else at
    return [Passage("", _words(whole, dict(zip(places, values)), framed))]


def _words(tokens: Sequence[str], weights: dict[int, float], framed: int | None) -> list[Word]:
    return [
        Word(visible(token), blank, weights.get(n), n == framed)
        for n, (token, blank) in enumerate(spaced(tokens))
    ]


def _draw(passages: Sequence[Passage], ends: tuple[float, float], texts: tuple[str, str]) -> Figure:
    from matplotlib.colors import Normalize

    norm = Normalize(*ends)
    few = max(len(passage.words) for passage in passages) <= FEW
    heading = wrapped(texts[0], PAPER - 2 * MARGIN, 10.5)
    wide = max(_width(passage.words) for passage in passages)
    room = min(PAPER - 2 * MARGIN, max(wide, width_of(heading.split("\n"), 10.5), 2.2))
    foot = wrapped(texts[1], room, 7.5)
    laid = [_laid(passage.words, room) for passage in passages]
    named = [0.2 if passage.name else 0.0 for passage in passages]
    top = MARGIN + height_of(heading, 10.5) + 0.1
    heights = [[_height(row, few) for row in rows] for rows in laid]
    high = sum(map(sum, heights)) + sum(named) + BETWEEN * (len(laid) - 1)
    scale = top + high + 0.1
    height = scale + 0.28 + height_of(foot, 7.5, 0.05)

    sheet = Sheet.of(room + 2 * MARGIN, height)
    axes = sheet.axes(MARGIN, top, room, high)
    axes.set(xlim=(0, room), ylim=(high, 0))
    axes.set_axis_off()
    down = 0.0
    for passage, rows, extra, tall in zip(passages, laid, named, heights):
        if passage.name:
            axes.text(0, down, passage.name, size=8, color=QUIET, va="top", parse_math=False)
        down += extra
        for row, line in zip(rows, tall):
            for word, left, wide in row:
                _write(axes, word, (left, down, wide), norm, few)
            down += line
        down += BETWEEN
    _scale(sheet, norm, scale)
    sheet.write(MARGIN, MARGIN, heading, size=10.5)
    sheet.write(MARGIN, scale + 0.24, foot, size=7.5, color=QUIET)
    return sheet.figure


def _scale(sheet: Sheet, norm: Normalize, top: float) -> None:
    from matplotlib.cm import ScalarMappable

    low, high = (f"{end:.3g}" for end in (norm.vmin or 0.0, norm.vmax or 0.0))
    before = f"weight  {low}"
    left = MARGIN + width_of([before], 8) + 0.07
    place, colours = (left, top + 0.02, 1.1, 0.11), ScalarMappable(norm, weight_map())
    sheet.colour_bar(place, colours, FRAME, orientation="horizontal", ticks=[])
    sheet.write(MARGIN, top, before, size=8)
    sheet.write(left + 1.17, top, high, size=8)


def _height(row: Sequence[tuple[Word, float, float]], few: bool) -> float:
    """Return the height of a line of words, with room for numbers where there are some."""
    numbered = few and any(word.weight is not None for word, *_ in row)
    return SIZE * LINE + (0.26 if numbered else 0.1)


def _width(words: Sequence[Word]) -> float:
    """Return the width of a passage on one line."""
    wide = widths_of([word.text for word in words], SIZE)
    return sum(wide) + sum(2 * PAD + (BLANK if word.blank else CLOSE) for word in words)


def _laid(words: Sequence[Word], room: float) -> list[list[tuple[Word, float, float]]]:
    """Break words into lines: each with its left end and width; from the right where read so."""
    wide = [width + 2 * PAD for width in widths_of([word.text for word in words], SIZE)]
    rows: list[list[tuple[Word, float, float]]] = [[]]
    end = 0.0
    for word, width in zip(words, wide):
        left = end + (BLANK if word.blank and rows[-1] else CLOSE)
        if rows[-1] and left + width > room:
            rows.append([])
            left = 0.0
        left = left if rows[-1] else 0.0
        rows[-1].append((word, left, width))
        end = left + width
    if mostly_right_to_left(word.text for word in words):
        return [[(word, room - left - width, width) for word, left, width in row] for row in rows]
    return rows


def _write(
    axes: Axes, word: Word, box: tuple[float, float, float], norm: Normalize, few: bool
) -> None:
    from matplotlib.patches import FancyBboxPatch

    left, top, wide = box
    high = SIZE * LINE + 0.04
    value = word.weight
    known = value is not None and bool(np.isfinite(value))
    unknown = value is not None and not known
    face = weight_map()(norm(value)) if value is not None and known else (1.0, 1.0, 1.0, 0.0)
    patch = FancyBboxPatch(
        (left, top),
        wide,
        high,
        boxstyle="round,pad=0,rounding_size=0.03",
        facecolor=HOLE if unknown else face,
        edgecolor=ACCENT if word.framed else HATCH if unknown else "none",
        hatch="////" if unknown else None,
        linewidth=1.6 if word.framed else 0,
        zorder=2 if word.framed else 1,
        clip_on=False,
    )
    axes.add_artist(patch)  # as add_patch, without asking how far each word reaches
    middle = left + wide / 2
    axes.text(
        middle,
        top + high / 2,
        word.text,
        size=SIZE,
        color=ink_on(face),
        ha="center",
        va="center_baseline",
        parse_math=False,
        zorder=3,
    )
    if few and value is not None and known and value >= 0.005:
        axes.text(
            middle,
            top + high + 0.03,
            f"{value:.2f}",
            size=7,
            color=QUIET,
            ha="center",
            va="top",
            parse_math=False,
            zorder=3,
        )
