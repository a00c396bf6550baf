"""A text shaded by attention, or cut by several tokenizers into words, pieces, characters."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    cast,
    runtime_checkable,
)

import numpy as np

from intently.core.matrix import LazyMatrix
from intently.core.matrix.labelling import follows
from intently.errors import ArgumentError, KindError, build
from intently.foundation.checks import check_word
from intently.show.cells import limits
from intently.show.files import destination, finish
from intently.show.inputs import Choice, Source, one_of, place
from intently.show.labels import lines, mostly_right_to_left, shown, spaced, titled, visible
from intently.show.reading import looked, missing, names, shown_names
from intently.show.sheet import (
    HEADING,
    LINE,
    NOTES,
    Sheet,
    boxed,
    broken,
    heading_of,
    height_of,
    width_of,
    widths_of,
    wrapped,
)
from intently.show.style import (
    ACCENT,
    FRAME,
    HATCH,
    HOLE,
    INK,
    QUIET,
    WEIGHTS,
    ink_on,
    style,
    weight_map,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

Looks = Literal["at", "from"]

LOOKS = ("at", "from")
LARGEST = 400
"""Tokens written of one text; of a longer one, parts are left out."""
AROUND = 8
"""Tokens written on each side of one that matters in a longer text."""
FAINT = 0.05
"""Share of the largest weight up to which a token does not matter in a longer text."""
FEW = 32
"""Texts of at most so many tokens show the numbers too."""

TINTS = (WEIGHTS[1], WEIGHTS[2])
"""Of tokens that are no weights, in turn."""

PAPER = 6.6
MARGIN = 0.16
SIZE = 11.0
NAMED, BETWEEN = 0.2, 0.1
BLANK = 0.05
PAD = 0.045
CLOSE = 0.012

BESIDE, STEP, APART = 0.03, SIZE * LINE + 0.11, 0.14
"""Between the boxes, the lines and the tokenizers of a sentence that is cut, in inches."""


class Word(NamedTuple):
    """A token to draw: its text, whether a blank precedes, and its weight, if any."""

    text: str
    blank: bool
    weight: float | None
    framed: bool


class Passage(NamedTuple):
    """Words in reading order under a small heading; gaps of a long text are words too."""

    name: str
    words: list[Word]


@runtime_checkable
class Tokenizer(Protocol):
    """The interface of tokenizers, which ours satisfy."""

    def encode(self, sentence: str, /) -> list[int]: ...
    def tokens(self, ids: list[int], /) -> list[str]: ...


Cutter: TypeAlias = Tokenizer | Callable[[str], Sequence[str]] | Sequence[str]
"""A tokenizer, a function such as ``tokenizer.tokenize``, or the tokens themselves."""


def text(
    matrix: Source | str,
    token: int | str | Mapping[str, Cutter],
    *,
    looks: Looks = "at",
    head: Choice = None,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Shade a text by what one token looks at (a row), or by what looks at it (a column).

    ``token`` is a query, or a key where ``looks="from"``, by its position or by its text where
    that occurs once; it is framed. Of (h, t, s) ``head`` chooses one, else their mean is drawn; of
    a recording it is ``"name"`` or ``("name", head)``. If rows and columns name the same text, or
    rows the next token, the text is written once; in cross-attention, both texts are written. A
    decoder row is named after the token that it reads, as in "and (writes softmax)". Texts of at
    most 32 tokens also show the weights as numbers; of more than 400, those around the token and
    around the largest weights are written, and each gap says how much weight it holds. Tokenizer
    marks become blanks, and right-to-left text runs from right to left.

    Instead of a matrix, a sentence shows how tokenizers split it, a box for each token and their
    number: ``token`` then maps names to our tokenizers, to functions from a sentence to tokens,
    such as ``list`` or ``tokenizer.tokenize``, or to the tokens themselves, which are shown
    unchanged. Returns the figure, written to ``save`` if given.

    Raises ArgumentError for a token that is not there or there twice, an unknown ``looks``, no
    tokenizers, none or more than 400 tokens; RangeError for a position outside; KindError for
    tokenizers that do not give tokens.

    >>> import torch
    >>> from intently.core.matrix import Dense
    >>> words = ("it", "was", "tired")
    >>> figure = text(Dense(torch.eye(3), labels=(words, words)), "it")
    >>> [written.get_text() for written in figure.axes[0].texts][:3]
    ['it', '1.00', 'was']
    >>> figure = text("It was wide.", {"words": str.split, "characters": list})
    >>> [written.get_text() for written in figure.axes[0].texts][:5]
    ['words', '3 tokens', 'It', 'was', 'wide.']
    """
    path = destination(save)
    check_word(looks, "looks", LOOKS)
    if isinstance(matrix, str):
        return _tokens(matrix, cast("Any", token), title, path)
    if isinstance(token, Mapping):
        expected = "a position, or the text of a token; tokenizers split a sentence, a str"
        raise build(KindError, "token", expected, "tokenizers")
    lazy, chosen = one_of(matrix, head)
    at = place(token, names(lazy)[looks == "from"])
    values = looked(lazy, at, looks)
    passages = _passages(lazy, at, looks, values)
    name = shown_names(lazy, shown)[looks == "from"][at]
    said = f"What ‘{name}’ looks at" if looks == "at" else f"Who looks at ‘{name}’"
    texts = titled(title or said, chosen), missing(values)
    drawn = [word.text for passage in passages for word in passage.words]
    with style((*drawn, texts[0])):
        return finish(_draw(passages, limits(values), texts), path)


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
    start, framed = (0, s - t + at) if looks == "at" else (s - t, at)
    return [Passage("", _words(whole, dict(enumerate(values, start)), framed))]


def _words(tokens: Sequence[str], weights: dict[int, float], framed: int | None) -> list[Word]:
    written = [
        Word(visible(token), blank, weights.get(n), n == framed)
        for n, (token, blank) in enumerate(spaced(tokens))
    ]
    if len(written) <= LARGEST:
        return written
    kept = _kept(len(written), weights, framed)
    found: list[Word] = []
    for stays, places in groupby(range(len(written)), kept.__getitem__):
        words = [written[n] for n in places]
        found += words if stays else [_gap(words)]
    return found


def _kept(count: int, weights: dict[int, float], framed: int | None) -> np.ndarray:
    """Return which of many tokens are written: those around the framed one and the most looked at.

    Where no token matters, the text is written from its beginning.
    """
    kept = np.zeros(count, dtype=bool)
    least = FAINT * max(weights.values(), default=0.0)
    heavy = sorted((n for n in weights if weights[n] > least), key=lambda n: (-weights[n], n))
    for n in ([] if framed is None else [framed]) + (heavy or [0]):
        around = slice(max(0, n - AROUND), n + AROUND + 1)
        if kept.sum() + (~kept[around]).sum() > LARGEST:
            break
        kept[around] = True
    return kept


def _gap(words: Sequence[Word]) -> Word:
    """Return what stands for words that are not written: how many they are, and their weight."""
    known = [word.weight for word in words if word.weight is not None]
    held = f", {sum(known):.2g} of the weight" if known else ""
    many = f"{len(words):,} token{'s' * (len(words) > 1)}"
    return Word(f"[… {many}{held} …]", True, None, False)


def _draw(passages: Sequence[Passage], ends: tuple[float, float], texts: tuple[str, str]) -> Figure:
    from matplotlib.colors import Normalize

    norm = Normalize(*ends)
    few = max(len(passage.words) for passage in passages) <= FEW
    heading = wrapped(texts[0], PAPER - 2 * MARGIN, HEADING)
    wide = max(_width(passage.words) for passage in passages)
    room = min(PAPER - 2 * MARGIN, max(wide, width_of(heading.split("\n"), HEADING), 2.2))
    foot = wrapped(texts[1], room, NOTES)
    laid = [_laid(passage.words, room) for passage in passages]
    top = MARGIN + height_of(heading, HEADING) + 0.1
    high = sum(_height(row, few) for rows in laid for row in rows) + BETWEEN * (len(laid) - 1)
    high += sum(NAMED for passage in passages if passage.name)
    scale = top + high + 0.1

    sheet = Sheet.of(room + 2 * MARGIN, scale + 0.28 + height_of(foot, NOTES, 0.05))
    axes = sheet.blank(MARGIN, top, room, high)
    down = 0.0
    for passage, rows in zip(passages, laid, strict=True):
        if passage.name:
            axes.text(0, down, passage.name, size=8, color=QUIET, va="top", parse_math=False)
            down += NAMED
        for row in rows:
            for word, left, wide in row:
                _write(axes, word, (left, down, wide), norm, few)
            down += _height(row, few)
        down += BETWEEN
    _scale(sheet, norm, scale)
    sheet.write(MARGIN, MARGIN, heading)
    sheet.note(MARGIN, scale + 0.24, foot)
    return sheet.figure


def _scale(sheet: Sheet, norm: Normalize, top: float) -> None:
    low, high = (f"{end:.3g}" for end in (norm.vmin or 0.0, norm.vmax or 0.0))
    before = f"weight  {low}"
    left = MARGIN + width_of([before], 8) + 0.07
    place = left, top + 0.02, 1.1, 0.11
    sheet.colour_bar(place, norm, frame=FRAME, orientation="horizontal", ticks=[])
    sheet.write(MARGIN, top, before, size=8)
    sheet.write(left + 1.17, top, high, size=8)


def _height(row: Sequence[tuple[Word, float, float]], few: bool) -> float:
    """Return the height of a line of words, with room for numbers if there are any."""
    numbered = few and any(word.weight is not None for word, *_ in row)
    return SIZE * LINE + (0.26 if numbered else 0.1)


def _width(words: Sequence[Word]) -> float:
    """Return the width of a passage on one line."""
    wide = widths_of([word.text for word in words], SIZE)
    return sum(wide) + sum(2 * PAD + (BLANK if word.blank else CLOSE) for word in words)


def _laid(words: Sequence[Word], room: float) -> list[list[tuple[Word, float, float]]]:
    """Break words into lines: each with its left end and width; right to left where needed."""
    texts = [word.text for word in words]
    wide = [width + 2 * PAD for width in widths_of(texts, SIZE)]
    gaps = [BLANK if word.blank else CLOSE for word in words]
    rows = broken(wide, gaps, room, mostly_right_to_left(texts))
    return [[(words[n], left, wide[n]) for n, left in row] for row in rows]


def _write(
    axes: Axes, word: Word, box: tuple[float, float, float], norm: Normalize, few: bool
) -> None:
    left, top, wide = box
    high = SIZE * LINE + 0.04
    value = word.weight
    ink = INK
    look: dict[str, Any] = {"facecolor": (1, 1, 1, 0), "edgecolor": "none", "linewidth": 0}
    if value is not None and np.isfinite(value):
        look["facecolor"] = face = weight_map()(norm(value))
        ink = ink_on(face)
    elif value is not None:
        look.update(facecolor=HOLE, edgecolor=HATCH, hatch="////")
    if word.framed:
        look.update(edgecolor=ACCENT, linewidth=1.6, zorder=2)
    boxed(axes, word.text, (left, top, wide, high), SIZE, ink, **look)
    if few and value is not None and value >= 0.005 and np.isfinite(value):
        axes.text(
            left + wide / 2,
            top + high + 0.03,
            f"{value:.2f}",
            size=7,
            color=QUIET,
            ha="center",
            va="top",
            parse_math=False,
            zorder=3,
        )


# --- a sentence and its tokenizers ----------------------------------------------------------------


def _tokens(
    sentence: str, cutters: Mapping[str, Cutter], title: str | None, path: Path | None
) -> Figure:
    if not isinstance(cutters, Mapping):
        expected = "tokenizers by name, for a text; a token, for a matrix"
        raise build(KindError, "token", expected, type(cutters).__name__)
    if not cutters:
        raise build(ArgumentError, "token", "at least one tokenizer", "none")
    cut = {str(name): _cut(sentence, cutter, str(name)) for name, cutter in cutters.items()}
    heading = "\n".join(filter(None, (titled(title), lines(sentence))))
    named = {visible(name, 40): list(map(visible, found)) for name, found in cut.items()}
    with style((*named, *(token for found in named.values() for token in found), heading)):
        return finish(_draw_tokens(named, heading), path)


def _cut(sentence: str, cutter: Cutter, name: str) -> list[str]:
    if isinstance(cutter, Tokenizer):
        found = cutter.tokens(cutter.encode(sentence))
    elif callable(cutter):
        found = cutter(sentence)
    else:
        found = cutter
    if (
        isinstance(found, str)
        or not isinstance(found, Sequence)
        or not all(isinstance(token, str) for token in found)
    ):
        raise build(
            KindError,
            f"token[{name!r}]",
            "a tokenizer, or a function from a text to tokens",
            type(cutter).__name__ if not callable(cutter) else f"one that gives {found!r:.60}",
            fix="for a tokenizer of transformers pass its .tokenize",
        )
    if not 1 <= len(found) <= LARGEST:
        raise build(ArgumentError, f"token[{name!r}]", f"1 to {LARGEST} tokens", f"{len(found)}")
    return list(found)


def _draw_tokens(named: Mapping[str, list[str]], heading: str) -> Figure:
    counts = {name: f"{len(found)} token{'s' * (len(found) > 1)}" for name, found in named.items()}
    left = 0.2 + max(width_of(named, 9), width_of(counts.values(), 7.5))
    room = PAPER - 2 * MARGIN - left
    laid = {name: _laid_tokens(found, room) for name, found in named.items()}
    heading, tall = heading_of(heading, PAPER - 2 * MARGIN)
    top = MARGIN + tall + 0.1
    high = sum(max(len(rows), 1.25) * STEP + APART for _, rows in laid.values()) - APART
    sheet = Sheet.of(PAPER, top + high + 0.12)
    axes = sheet.blank(MARGIN, top, PAPER - 2 * MARGIN, high)
    down = 0.0
    for name, (wide, rows) in laid.items():
        axes.text(0, down + 0.03, name, size=9, color=INK, va="top", parse_math=False)
        axes.text(0, down + 0.2, counts[name], size=7.5, color=QUIET, va="top")
        for line, row in enumerate(rows):
            for n, start in row:
                box = left + start, down + line * STEP, wide[n], SIZE * LINE + 0.05
                boxed(axes, named[name][n], box, SIZE, facecolor=TINTS[n % 2], edgecolor="none")
        down += max(len(rows), 1.25) * STEP + APART
    sheet.write(MARGIN, MARGIN, heading)
    return sheet.figure


def _laid_tokens(
    found: Sequence[str], room: float
) -> tuple[list[float], list[list[tuple[int, float]]]]:
    """Return the widths of tokens, and their lines as `broken` gives them."""
    wide = [max(width, 0.06) + 2 * PAD for width in widths_of(found, SIZE)]
    return wide, broken(wide, [BESIDE] * len(wide), room, mostly_right_to_left(found))
